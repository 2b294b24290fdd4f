from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from proteus.language.stream import UNFINISHED, Detokenizer, StopStrings, WindowStream
from tests.language.checkpoints import TOKENIZERS

KINDS = tuple(TOKENIZERS)


@pytest.fixture(scope="module")
def tokenizers(folders: dict[str, Path]) -> dict[str, Tokenizer]:
    return {kind: Tokenizer.from_file(str(folder / "tokenizer.json")) for kind, folder in folders.items()}


def id_of(tokenizer: Tokenizer, name: str) -> int:
    number = tokenizer.token_to_id(name)
    assert number is not None
    return number


def pieces_of(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    stream = Detokenizer(tokenizer).stream()
    return [*[stream.push(number) for number in ids], stream.flush()]


@pytest.mark.parametrize("kind", KINDS)
@given(places=st.lists(st.integers(0, 10_000), max_size=40))
@settings(deadline=None, max_examples=120)
def test_pieces_of_any_ids_add_up_to_their_text(tokenizers: dict[str, Tokenizer], kind: str, places: list[int]) -> None:
    tokenizer = tokenizers[kind]
    ids = [place % tokenizer.get_vocab_size() for place in places]
    assert "".join(pieces_of(tokenizer, ids)) == tokenizer.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from("ab 👩é日\n")), max_size=30))
@example("👩‍👩‍👧‍👦 日本語 é")
@settings(deadline=None, max_examples=60)
def test_pieces_are_whole_characters(tokenizers: dict[str, Tokenizer], kind: str, text: str) -> None:
    tokenizer = tokenizers[kind]
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    whole = tokenizer.decode(ids, skip_special_tokens=True)
    for so_far in accumulate(pieces_of(tokenizer, ids)):
        assert whole.startswith(so_far)


@given(places=st.lists(st.integers(8, 300), max_size=30))
@settings(deadline=None, max_examples=100)
def test_both_ways_give_the_same_text_of_byte_level_ids(tokenizers: dict[str, Tokenizer], places: list[int]) -> None:
    window = WindowStream(tokenizers["bytes"], skipped=frozenset(), held=frozenset())
    pieces = [window.push(number) for number in places]
    assert "".join([*pieces, window.flush()]) == "".join(pieces_of(tokenizers["bytes"], places))


def test_text_comes_with_the_token_that_completes_it(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["bytes"]
    ids = [number for character in "a é!" for number in tokenizer.encode(character).ids]
    assert pieces_of(tokenizer, ids) == ["a", " ", "", "é", "!", ""]


def test_an_unfinished_character_at_the_end_is_flushed(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["bytes"]
    ids = tokenizer.encode("é").ids[:1]
    assert pieces_of(tokenizer, ids) == ["", "\N{REPLACEMENT CHARACTER}"]


@pytest.mark.parametrize("kind", KINDS)
@given(places=st.lists(st.integers(0, 10_000), max_size=40))
@settings(deadline=None, max_examples=120)
def test_bytes_of_the_tokens_add_up_to_the_text(tokenizers: dict[str, Tokenizer], kind: str, places: list[int]) -> None:
    tokenizer = tokenizers[kind]
    detokenizer = Detokenizer(tokenizer)
    special = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    ids = [number for place in places if (number := place % tokenizer.get_vocab_size()) not in special]
    whole = b"".join(map(detokenizer.token_bytes, ids)).decode("utf-8", "replace")
    if kind != "bytes":  # SentencePiece's decoders take the space away from the first word, and a broken byte for one
        whole, ids = whole.removeprefix(" "), ids if UNFINISHED not in whole else []
    assert not ids or whole == tokenizer.decode(ids)


def test_a_token_has_its_bytes_exactly_and_its_text_as_far_as_it_goes(tokenizers: dict[str, Tokenizer]) -> None:
    detokenizer = Detokenizer(tokenizers["bytes"])
    halves = tokenizers["bytes"].encode("é").ids
    assert [detokenizer.token_bytes(number) for number in halves] == [b"\xc3", b"\xa9"]
    assert [detokenizer.token_text(number) for number in halves] == [UNFINISHED] * 2
    (circle,) = tokenizers["bytes"].encode(" circle").ids
    assert detokenizer.token_text(circle) == " circle" and detokenizer.token_bytes(circle) == b" circle"


@pytest.mark.parametrize("kind", ["first", "always"])
def test_a_byte_token_of_sentencepiece_is_its_byte_and_a_word_keeps_its_space(
    tokenizers: dict[str, Tokenizer], kind: str
) -> None:
    tokenizer, detokenizer = tokenizers[kind], Detokenizer(tokenizers[kind])
    assert detokenizer.token_bytes(id_of(tokenizer, "<0xE6>")) == b"\xe6"
    assert detokenizer.token_text(id_of(tokenizer, "▁")) == " "


@pytest.mark.parametrize("kind", KINDS)
def test_a_special_token_has_its_name_and_an_unknown_id_nothing(tokenizers: dict[str, Tokenizer], kind: str) -> None:
    tokenizer, detokenizer = tokenizers[kind], Detokenizer(tokenizers[kind])
    for name in ("</s>", "<image>", "<|end|>"):
        number = id_of(tokenizer, name)
        assert detokenizer.token_text(number) == name and detokenizer.token_bytes(number) == name.encode()
    assert detokenizer.token_text(152_063) == "" and detokenizer.token_bytes(152_063) == b""


def test_without_any_ordinary_letter_a_token_is_decoded_alone() -> None:
    tokenizer = Tokenizer(models.WordLevel({"red": 0, "blue": 1}, unk_token="red"))
    assert Detokenizer(tokenizer).token_text(1) == "blue"


def cut(pieces: list[str], stops: list[str]) -> tuple[str, bool]:
    matcher = StopStrings(stops)
    text = "".join(matcher.push(piece) for piece in pieces)
    return text + matcher.flush(), matcher.found


@given(
    pieces=st.lists(st.text("ab", max_size=4), max_size=12),
    stops=st.lists(st.text("ab", min_size=1, max_size=5), max_size=3),
)
@settings(deadline=None, max_examples=200)
def test_text_is_cut_before_the_stop_string_that_is_complete_first(pieces: list[str], stops: list[str]) -> None:
    text = "".join(pieces)
    ends = [end for end in range(len(text) + 1) if any(text[:end].endswith(stop) for stop in stops)]
    expected = text
    if ends:
        longest = max(len(stop) for stop in stops if text[: ends[0]].endswith(stop))
        expected = text[: ends[0] - longest]
    assert cut(pieces, stops) == (expected, bool(ends))


@given(
    pieces=st.lists(st.text("ab", max_size=4), max_size=12),
    stops=st.lists(st.text("ab", min_size=1, max_size=5), max_size=3),
)
@settings(deadline=None)
def test_nothing_is_given_out_that_is_taken_back(pieces: list[str], stops: list[str]) -> None:
    final, _ = cut(pieces, stops)
    matcher, given_out = StopStrings(stops), ""
    for piece in pieces:
        given_out += matcher.push(piece)
        assert final.startswith(given_out)


def test_only_what_could_begin_a_stop_string_is_held_back() -> None:
    matcher = StopStrings(["\n\nUser:"])
    assert [matcher.push(piece) for piece in ("Red.", "\n", "\nUs", "eful")] == ["Red.", "", "", "\n\nUseful"]
