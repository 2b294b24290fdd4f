from __future__ import annotations

import struct

import pytest

from proteus.errors import InvalidPicture
from proteus.media.boxes import MAX_BOXES
from proteus.media.damage import Damaged
from proteus.media.webp import probe_webp
from tests.media.corpus_pictures import turned, xmp


def chunk(kind: bytes, body: bytes = b"") -> bytes:
    return kind + struct.pack("<I", len(body)) + body + b"\0" * (len(body) % 2)


def webp(*chunks: bytes) -> memoryview:
    body = b"WEBP" + b"".join(chunks)
    return memoryview(b"RIFF" + struct.pack("<I", len(body)) + body)


def extended(width_px: int = 67, height_px: int = 35, flags: int = 0) -> bytes:
    sides = (width_px - 1).to_bytes(3, "little") + (height_px - 1).to_bytes(3, "little")
    return chunk(b"VP8X", bytes((flags, 0, 0, 0)) + sides)


def lossy(width_px: int = 67, height_px: int = 35) -> bytes:
    return chunk(b"VP8 ", b"\x50\1\0\x9d\x01\x2a" + struct.pack("<HH", width_px, height_px) + b"pixels")


def lossless(width_px: int = 67, height_px: int = 35, *, alpha: bool = False) -> bytes:
    return chunk(b"VP8L", struct.pack("<BI", 0x2F, width_px - 1 | height_px - 1 << 14 | alpha << 28) + b"pixels")


@pytest.mark.parametrize(
    ("chunks", "mode"),
    [
        ((lossy(),), "RGB"),
        ((lossless(),), "RGB"),
        ((lossless(alpha=True),), "RGBA"),
        ((extended(), lossy()), "RGB"),
        ((extended(flags=0x10), lossy()), "RGBA"),
        ((extended(), chunk(b"ALPH"), lossy()), "RGBA"),
        ((extended(), lossless(alpha=True)), "RGBA"),
        ((extended(flags=0x10), lossless()), "RGB"),
        ((extended(flags=0x10),), "RGBA"),
        ((extended(), chunk(b"VP8 ", b"garbage, and more of it")), "RGB"),
    ],
)
def test_size_and_mode_come_from_the_first_chunks(chunks: tuple[bytes, ...], mode: str) -> None:
    header = probe_webp(webp(*chunks))
    assert (header.width_px, header.height_px, header.mode, header.num_frames) == (67, 35, mode, 1)


def test_scaling_hints_are_no_part_of_the_size() -> None:
    header = probe_webp(webp(lossy(67 | 0x4000, 35 | 0xC000)))
    assert (header.width_px, header.height_px) == (67, 35)


def test_largest_canvas_is_read() -> None:
    header = probe_webp(webp(extended(1 << 24, 1 << 24)))
    assert (header.width_px, header.height_px) == (1 << 24, 1 << 24)


def test_turn_stands_at_the_end() -> None:
    exif, packet = chunk(b"EXIF", turned(6)), chunk(b"XMP ", xmp(8).encode())
    assert probe_webp(webp(extended(), lossy(), exif, packet)).orientation == 6
    assert probe_webp(webp(extended(), lossy(), packet)).orientation == 8
    assert probe_webp(webp(lossy(), exif)).orientation == 1  # a plain file has no metadata


def test_frames_are_counted_where_the_file_is_an_animation() -> None:
    frames = chunk(b"ANMF", b"x" * 17) * 5
    header = probe_webp(webp(extended(flags=0x02), chunk(b"ANIM"), frames))
    assert (header.num_frames, header.mode) == (5, "RGB")
    assert probe_webp(webp(extended(), frames)).num_frames == 1


@pytest.mark.parametrize(
    "data",
    [
        b"RIFF\0\0\0\0WEBP",
        b"RIFF\0\0\0\0WEBP" + lossy(),  # the length leaves no room
        bytes(webp(lossy()))[:27],
        bytes(webp(chunk(b"VP8 ", b"x" * 20))),
        bytes(webp(chunk(b"VP8L", b"x" * 20))),
        bytes(webp(chunk(b"JUNK", b"x"), lossy())),
        bytes(webp(lossy(0, 5))),
        bytes(webp(lossy(5, 0))),
        bytes(webp(chunk(b"VP8X", b"x" * 9))),
        bytes(webp(extended(8, 8), lossy(9_000, 9_000))),
        bytes(webp(extended(flags=0x02), lossy())),
    ],
)
def test_broken_file_is_damage(data: bytes) -> None:
    with pytest.raises((Damaged, struct.error, StopIteration)):
        probe_webp(memoryview(data))


def test_too_many_chunks_are_refused() -> None:
    frame = chunk(b"ANMF")
    assert probe_webp(webp(extended(flags=2), frame * (MAX_BOXES - 2))).num_frames == MAX_BOXES - 2
    with pytest.raises(InvalidPicture, match="4,096 chunks or more"):
        probe_webp(webp(extended(flags=2), frame * MAX_BOXES))
