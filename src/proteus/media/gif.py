"""GIF: size, mode and frames from the blocks of GIF89a; compressed pixels are skipped by their lengths.

Encoders fill every block of pixels but the last, so that runs of equal blocks are skipped many at a time.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from proteus.errors import InvalidPicture, MediaTooLarge
from proteus.media.damage import Damaged
from proteus.media.header import PictureHeader

MAX_FRAMES = 4096
MAX_STEPS = 24_576  # in one file: blocks, where BLOCKS_PER_STEP equal ones in a row are one
BLOCKS_PER_STEP = 64
EXTENSION, IMAGE, TRAILER = 0x21, 0x2C, 0x3B
HAS_PALETTE, PALETTE_BITS = 0x80, 0x07
FIRST_WINDOW, LAST_WINDOW = 16, 4096  # blocks looked at together
GREYS = bytes(value for grey in range(256) for value in (grey, grey, grey))
_SCREEN = struct.Struct("<6xHHB2x")
_IMAGE = struct.Struct("<xHHHHB")


@dataclass(slots=True)
class _Walk:
    """Where a walk over the blocks is, and what the first frame said."""

    at: int
    steps: int = 0
    num_frames: int = 0
    right_px: int = 0  # of the first frame; the screen grows to hold it
    bottom_px: int = 0
    palette: memoryview | None = None  # the first frame's own


def probe_gif(data: memoryview) -> PictureHeader:
    """Raises Damaged or struct.error for broken files, MediaTooLarge over MAX_FRAMES frames, InvalidPicture over
    MAX_STEPS blocks. Frames that a truncated file still holds are counted.
    """
    width_px, height_px, flags = _SCREEN.unpack_from(data)
    palette = _palette(data, _SCREEN.size, flags)
    walk = _Walk(at=_SCREEN.size + len(palette))
    while walk.at < len(data) and data[walk.at] != TRAILER:
        _step(data, walk)
    width_px, height_px = max(width_px, walk.right_px), max(height_px, walk.bottom_px)
    if not walk.num_frames or not width_px or not height_px:
        raise Damaged
    used = walk.palette or palette
    return PictureHeader(
        format="gif",
        width_px=width_px,
        height_px=height_px,
        mode="L" if used == GREYS[: len(used)] else "P",
        num_frames=walk.num_frames,
    )


def _step(data: memoryview, walk: _Walk) -> None:
    """Over one block; bytes that start none are skipped one by one, as viewers do."""
    _count_steps(walk, 1)
    kind = data[walk.at]
    if kind == EXTENSION:
        _skip_blocks(data, walk, walk.at + 2)
    elif kind == IMAGE:
        _skip_frame(data, walk)
    else:
        walk.at += 1


def _skip_frame(data: memoryview, walk: _Walk) -> None:
    if walk.at + _IMAGE.size >= len(data):
        walk.at = len(data)
        return
    left, top, width, height, flags = _IMAGE.unpack_from(data, walk.at)
    palette = _palette(data, walk.at + _IMAGE.size, flags)
    if not walk.num_frames:
        walk.right_px, walk.bottom_px, walk.palette = left + width, top + height, palette
    walk.num_frames += 1
    if walk.num_frames > MAX_FRAMES:
        raise MediaTooLarge(
            f"the gif has more than {MAX_FRAMES:,} frames", limit=f"{MAX_FRAMES:,} frames", fix="send fewer frames"
        )
    _skip_blocks(data, walk, walk.at + _IMAGE.size + len(palette) + 1)


def _palette(data: memoryview, start: int, flags: int) -> memoryview:
    """Empty without one."""
    return data[start : start + (3 << (flags & PALETTE_BITS) + 1)] if flags & HAS_PALETTE else data[:0]


def _skip_blocks(data: memoryview, walk: _Walk, at: int) -> None:
    """Behind the empty block that ends a row of them, or to the end of the file."""
    window = FIRST_WINDOW
    while at < len(data):
        size = data[at]
        at += 1 + size
        if not size:
            break
        sizes = bytes(data[at : at + window * (1 + size)])[:: 1 + size]
        equal = len(sizes) - len(sizes.lstrip(bytes((size,))))
        _count_steps(walk, 1 + equal // BLOCKS_PER_STEP)
        at += equal * (1 + size)
        window = min(4 * window, LAST_WINDOW) if equal == len(sizes) else FIRST_WINDOW
    walk.at = at


def _count_steps(walk: _Walk, steps: int) -> None:
    walk.steps += steps
    if walk.steps > MAX_STEPS:
        raise InvalidPicture("the gif is cut into too many blocks", limit=f"{MAX_STEPS:,} blocks", fix="save it anew")
