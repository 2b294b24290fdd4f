from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, models

from proteus.families.llava import UnsupportedCheckpoint
from proteus.language.tokenizer import BARRIERS, DisarmedTokenizer, load_tokenizer

BARRIER = chr(BARRIERS[0])


def merging_tokenizer(*control: str) -> Tokenizer:
    """Characters, and merges that build `<s>` out of them, as some vocabularies have."""
    pieces = ["<", "s", ">", "2", "x", "<s", "<s>"]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("<", "s"), ("<s", ">")]))
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in control])
    return tokenizer


def typed(disarmed: DisarmedTokenizer, text: str) -> list[int]:
    return disarmed.encode(disarmed.arm(disarmed.protect(text, BARRIER), BARRIER), add_special_tokens=False)


def test_merges_do_not_build_a_control_token_out_of_text() -> None:
    tokenizer = merging_tokenizer("<s>")
    disarmed = DisarmedTokenizer(tokenizer, {"<s>"})
    assert typed(disarmed, "x<s>x") == [4, 5, 2, 4]
    assert disarmed.encode(disarmed.arm("x<s>x", BARRIER), add_special_tokens=False) == [4, 6, 4]


def test_of_control_tokens_that_begin_alike_the_longest_counts_as_in_the_tokenizer() -> None:
    tokenizer = merging_tokenizer("<s>", "<s>2")
    disarmed = DisarmedTokenizer(tokenizer, {"<s>", "<s>2"})
    for written in ("<s>2", "<s>x<s>2x", "<s><s>22"):
        armed = disarmed.arm(written, BARRIER)
        assert disarmed.encode(armed, add_special_tokens=False) == tokenizer.encode(written).ids


def test_names_of_the_twin_cannot_be_guessed() -> None:
    first, second = (DisarmedTokenizer(merging_tokenizer("<s>"), {"<s>"}).arm("<s>", BARRIER) for _ in range(2))
    assert first != second
    assert len(first) > 32


def test_text_without_the_first_character_of_a_control_token_passes_through_the_template_untouched() -> None:
    disarmed = DisarmedTokenizer(merging_tokenizer("<s>"), {"<s>"})
    assert disarmed.protect(" What is 2 x 2? \n", BARRIER) == " What is 2 x 2? \n"
    assert disarmed.protect(" \n", BARRIER) == " \n"
    assert disarmed.protect(" <s> ", BARRIER) == f" <{BARRIER}s> "


def test_a_control_token_of_one_character_is_refused() -> None:
    with pytest.raises(UnsupportedCheckpoint, match="'x' has one character"):
        DisarmedTokenizer(merging_tokenizer("x"), {"x"})


def test_a_folder_without_a_usable_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=r"tokenizer\.json cannot be read"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UnsupportedCheckpoint, match=r"tokenizer\.json is no tokenizer"):
        load_tokenizer(tmp_path)
