"""Reads the directories of TIFF 6.0 (and BigTIFF), which EXIF shares; only the integers in them are told.

Work is bounded: a directory of more than MAX_ENTRIES is refused, and values are read a few at a time.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from proteus.media.damage import Damaged

MAX_ENTRIES = 4096
MAX_VALUES = 8  # of one entry
# Type of the file -> letter of `struct`: BYTE, SHORT, LONG, SBYTE, SSHORT, SLONG, LONG8, SLONG8.
INTEGERS: Mapping[int, str] = {1: "B", 3: "H", 4: "I", 6: "b", 8: "h", 9: "i", 16: "Q", 17: "q"}
WIDTHS: Mapping[int, int] = {1: 1, 2: 1, 3: 2, 4: 4, 6: 1, 7: 1, 8: 2, 9: 4, 16: 8, 17: 8}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a file writes its directories; `struct` codes."""

    order: str  # "<" or ">"
    count: str  # entries of a directory
    entry: str  # tag, type, number of values, and room for them or their place
    pointer: str  # of the next directory, and of values that do not fit their entry


CLASSIC, BIG = ("H", "HHI4x", "I"), ("Q", "HHQ8x", "Q")


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    data: bytes | memoryview
    layout: Layout
    entries: Mapping[int, tuple[int, int, int]]  # tag -> type, number of values, where they or their pointer lie

    def integers(self, tag: int) -> tuple[int, ...]:
        """The first MAX_VALUES values of `tag`; empty when it is absent or holds no integers."""
        kind, number, place = self.entries.get(tag, (0, 0, 0))
        if kind not in INTEGERS:
            return ()
        code = f"{self.layout.order}{min(number, MAX_VALUES)}{INTEGERS[kind]}"
        values: tuple[int, ...] = struct.unpack_from(code, self.data, self._start(kind, number, place))
        return values

    def integer(self, tag: int, default: int | None = None) -> int:
        """The first value of `tag`; raises Damaged when it is absent and there is no default."""
        values = self.integers(tag)
        if values:
            return values[0]
        if default is None:
            raise Damaged
        return default

    def content(self, tag: int) -> bytes:
        """The bytes of `tag`, whatever its type; empty when it is absent or lies outside the file."""
        kind, number, place = self.entries.get(tag, (0, 0, 0))
        start = self._start(kind, number, place)
        return bytes(self.data[start : start + number * WIDTHS.get(kind, 0)])

    def _start(self, kind: int, number: int, place: int) -> int:
        """Values that do not fit their entry lie where it points to."""
        if number * WIDTHS.get(kind, 0) <= struct.calcsize(self.layout.pointer):
            return place
        pointer: int = struct.unpack_from(self.layout.pointer, self.data, place)[0]
        return min(pointer, len(self.data))


def first_directory(data: bytes | memoryview) -> tuple[Layout, int]:
    """The layout, and the offset of the first directory; raises Damaged or struct.error."""
    order = {b"II": "<", b"MM": ">"}.get(bytes(data[:2]))
    if order is None:
        raise Damaged
    version, pointer = struct.unpack_from(f"{order}HI", data, 2)
    if version == 42:
        return _layout(order, CLASSIC), pointer
    if version == 43:
        return _layout(order, BIG), struct.unpack_from(f"{order}Q", data, 8)[0]
    raise Damaged


def _layout(order: str, codes: tuple[str, str, str]) -> Layout:
    count, entry, pointer = (order + code for code in codes)
    return Layout(order=order, count=count, entry=entry, pointer=pointer)


def read_directory(data: bytes | memoryview, layout: Layout, offset: int) -> Directory:
    """The directory at `offset`, or as much of it as is there.

    Raises Damaged or struct.error when nothing is there, or when it claims more than MAX_ENTRIES.
    """
    if offset > len(data):
        raise Damaged
    (count,) = struct.unpack_from(layout.count, data, offset)
    if count > MAX_ENTRIES:
        raise Damaged
    start, step = offset + struct.calcsize(layout.count), struct.calcsize(layout.entry)
    end = start + min(count, (len(data) - start) // step) * step
    places = range(end - struct.calcsize(layout.pointer), start, -step)
    table = list(struct.iter_unpack(layout.entry, data[start:end]))
    backwards = zip(places, reversed(table), strict=True)  # so that of two entries of a tag the first stays
    return Directory(
        data=data,
        layout=layout,
        entries={tag: (kind, number, place) for place, (tag, kind, number) in backwards},
    )


def next_directory(data: bytes | memoryview, layout: Layout, offset: int) -> int:
    """Offset of the directory that follows the one at `offset`; 0 when there is none, or none in the file."""
    try:
        (count,) = struct.unpack_from(layout.count, data, offset)
        end = offset + struct.calcsize(layout.count) + count * struct.calcsize(layout.entry)
        following: int = struct.unpack_from(layout.pointer, data, min(end, len(data)))[0]
    except struct.error:
        return 0
    return following if following < len(data) else 0
