"""Walks the containers that media come in, without trusting a length: each walker stops at the end of the data, and
after MAX_BOXES, so that no file makes us work for long.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

MAX_BOXES = 4096
_HEAD = struct.Struct(">I4s")


def iso_head(data: bytes | memoryview, start: int, end: int) -> tuple[bytes, int, int] | None:
    """(type, start of content, end it claims) of the ISO base media box at `start`; ISO/IEC 14496-12 §4.2.

    None where there is no room for a head before `end` or the box claims less than its own head.
    """
    if start + 8 > end:
        return None
    head = 8
    size, kind = _HEAD.unpack_from(data, start)
    if size == 1:
        size, head = int.from_bytes(data[start + 8 : start + 16], "big"), 16
    elif size == 0:
        size = end - start
    return None if size < head else (kind, start + head, start + size)


def iso_boxes(data: bytes | memoryview, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """(type, start of content, end of content) of the boxes in data[start:end]; a box that runs over `end` is cut."""
    for _ in range(MAX_BOXES):
        head = iso_head(data, start, end)
        if head is None:
            return
        kind, content, start = head
        yield kind, min(content, end), min(start, end)


def riff_chunks(data: bytes | memoryview, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """(id, start of content, end of content) of the RIFF chunks in data[start:end]; contents are padded to even."""
    for _ in range(MAX_BOXES):
        if start + 8 > end:
            return
        size = int.from_bytes(data[start + 4 : start + 8], "little")
        yield bytes(data[start : start + 4]), start + 8, min(start + 8 + size, end)
        start += 8 + size + size % 2
