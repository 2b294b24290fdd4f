"""Numbers out of headers, and the fixed texts for files that do not hold what they promise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from proteus.errors import InvalidMedia

Medium = Literal["video", "audio"]
Order = Literal["big", "little"]


class Damaged(Exception):
    """The bytes break the rules of their format."""


class TooMany(Exception):
    """The file has more parts than we look at; the true number is not known then, so none is told."""

    def __init__(self, parts: str, most: int) -> None:
        super().__init__(parts)
        self.parts, self.most = parts, most


def number(data: memoryview, at: int, num_bytes: int, order: Order = "big", *, signed: bool = False) -> int:
    """The integer of `num_bytes` at `at`; raises Damaged where the data ends before it does."""
    if at < 0 or at + num_bytes > len(data):
        raise Damaged
    return int.from_bytes(data[at : at + num_bytes], order, signed=signed)


def letters(data: memoryview, at: int) -> str:
    """The four-letter code at `at`, what is not printable shown as `?`; raises Damaged past the end."""
    if at + 4 > len(data):
        raise Damaged
    return "".join(letter if letter.isprintable() else "?" for letter in bytes(data[at : at + 4]).decode("latin-1"))


@contextmanager
def damage_told(medium: Medium, name: str) -> Iterator[None]:
    """Tell Damaged and TooMany raised inside as InvalidMedia with a fixed text."""
    try:
        yield
    except Damaged as error:
        raise InvalidMedia(
            f"the {medium} starts as {name} but is truncated or damaged", fix="send the whole, intact file"
        ) from error
    except TooMany as error:
        raise InvalidMedia(
            f"the {name} {medium} has too many {error.parts}",
            limit=f"{error.most:,} {error.parts}",
            fix=f"send a shorter {medium}",
        ) from error
