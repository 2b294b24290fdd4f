"""Numbers and codes out of headers of video and audio; reads past the end are damage."""

from __future__ import annotations

from typing import Literal

from proteus.errors import InvalidMedia
from proteus.media.damage import Damaged

Order = Literal["big", "little"]


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


def too_many(medium: Literal["video", "audio"], parts: str, most: int) -> InvalidMedia:
    """The error for a file with more parts than we look at: the true number is not known, so none is told."""
    return InvalidMedia(
        f"the {medium} is made of too many {parts}", limit=f"{most:,} {parts}", fix=f"send a shorter {medium}"
    )
