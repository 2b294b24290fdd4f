"""Text that streams is held back until it is checked, and every check sees what stands before."""

from __future__ import annotations

import asyncio

import pytest

from proteus.client.results import Piece
from proteus.gateway.moderation.windows import WINDOW_CHARS, Held


class Refused(Exception):
    pass


class Watch:
    """A check that keeps what it saw, and refuses a word."""

    def __init__(self, bad: str = "\0") -> None:
        self.seen: list[str] = []
        self._bad = bad

    async def __call__(self, text: str) -> None:
        self.seen.append(text)
        if self._bad in text:
            raise Refused


def pieces(text: str, size: int = 3, index: int = 0) -> list[Piece]:
    return [
        Piece(text=text[at : at + size], token_ids=(at,), index=index, logprobs=()) for at in range(0, len(text), size)
    ]


def streamed(watch: Watch, given: list[Piece]) -> list[Piece]:
    """What leaves; of each answer no more than its checks have seen."""

    async def run() -> list[Piece]:
        held, left, sent_chars = Held(watch), list[Piece](), 0
        for piece in given:
            left += (ready := await held.add(piece))
            sent_chars += sum(len(one.text) for one in ready)
            assert sent_chars <= sum(map(len, watch.seen))
        return left + list(await held.end())

    return asyncio.run(run())


def covered(text: str, seen: list[str]) -> bool:
    """Whether the checks saw all of a text that repeats nothing, each from within what was seen before."""
    end = 0
    for part in seen:
        start = text.index(part)
        if start > end:
            return False
        end = max(end, start + len(part))
    return end == len(text)


@pytest.mark.parametrize("size", [1, 3, 7, 500])
@pytest.mark.parametrize(
    "text",
    [
        "",
        "Red.",
        "".join(f"This is sentence {number}. " for number in range(40)),
        "".join(f"word{number} " for number in range(200)),
        "".join(chr(0x4E00 + number) for number in range(1_000)),  # a writing without spaces
        "".join(f"{number}." for number in range(100)),
        "".join(f"{number}{chr(0x4E00 + number) * 120} " for number in range(9)),
    ],
)
def test_everything_leaves_once_and_in_order_and_was_seen(text: str, size: int) -> None:
    watch = Watch()
    assert streamed(watch, pieces(text, size)) == pieces(text, size)
    assert covered(text, watch.seen)


def test_checks_are_few() -> None:
    watch = Watch()
    streamed(watch, pieces("x" * 10_000, 1))
    assert len(watch.seen) <= 10_000 / WINDOW_CHARS + 1


@pytest.mark.parametrize("at", [0, 37, 198, 199, 200, 201, 399, 1_000])
def test_a_word_is_found_wherever_the_windows_end(at: int) -> None:
    filler = ("ab " * 700)[:at]
    watch = Watch("forbidden")
    with pytest.raises(Refused):
        streamed(watch, pieces(filler + " forbidden and more", 1))


def test_nothing_of_a_refused_word_leaves() -> None:
    watch = Watch("forbidden")

    given, left = pieces("ab " * 65 + "forbidden " + "cd " * 100, 1), list[Piece]()

    async def run() -> None:
        held = Held(watch)
        for piece in given:
            left.extend(await held.add(piece))

    with pytest.raises(Refused):
        asyncio.run(run())
    assert "".join(piece.text for piece in left).strip("ab ") == ""


def test_answers_are_checked_each_by_itself() -> None:
    watch = Watch("forbidden")
    pairs = zip(pieces("forb" * 9, 4), pieces("idden " * 6, 4, index=1), strict=True)
    mixed = [piece for pair in pairs for piece in pair]
    assert len(streamed(watch, mixed)) == len(mixed)


def test_a_token_without_text_waits_for_what_it_belongs_to() -> None:
    """Its logprobs would tell the bytes of a character that nobody has checked."""
    sentence = Piece(text="a long sentence that ends now, after forty.", token_ids=(0,))
    part = Piece(text="", token_ids=(1,))

    async def run() -> tuple[int, int]:
        held = Held(Watch())
        at_once = await held.add(sentence)
        later = await held.add(part)
        return len(at_once) + len(later), len(await held.end())

    assert asyncio.run(run()) == (1, 1)
