"""WebP: size, mode, frames and orientation from the RIFF chunks; RFC 9649.

A plain file is one chunk of pixels; an extended one starts with the size of its canvas and keeps metadata at its end.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from proteus.errors import InvalidPicture
from proteus.media.boxes import MAX_BOXES, riff_chunks
from proteus.media.damage import Damaged
from proteus.media.header import PictureHeader
from proteus.media.orientation import orientation_of

ANIMATION, ALPHA = 0x02, 0x10  # flags of the extended header
LOSSY_START = b"\x9d\x01\x2a"  # RFC 6386 §9.1
LOSSLESS_START = 0x2F
SIDE_BITS = 0x3FFF


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pixels:
    """What a chunk of pixels says of itself."""

    width_px: int
    height_px: int
    has_alpha: bool | None  # None: lossy pixels do not say


@dataclass(slots=True)
class _Found:
    """What the chunks of an extended file tell, gathered on the way; of two of a kind the first counts."""

    num_frames: int = 0
    has_alpha_plane: bool = False
    pixels: _Pixels | None = None
    exif: bytes = b""
    xmp: bytes = b""


def probe_webp(data: memoryview) -> PictureHeader:
    """Raises Damaged or struct.error for broken files, InvalidPicture for one of more than MAX_BOXES chunks."""
    (size,) = struct.unpack_from("<I", data, 4)
    chunks = riff_chunks(data, 12, min(8 + size, len(data)))
    kind, start, end = next(chunks)
    if kind == b"VP8X":
        return _probe_extended(data, data[start:end], chunks)
    pixels = _pixels_of(kind, data[start:end])
    if pixels is None or not pixels.width_px or not pixels.height_px:
        raise Damaged
    return PictureHeader(
        format="webp", width_px=pixels.width_px, height_px=pixels.height_px, mode="RGBA" if pixels.has_alpha else "RGB"
    )


def _probe_extended(data: memoryview, head: memoryview, chunks: Iterator[tuple[bytes, int, int]]) -> PictureHeader:
    flags, low_width, high_width, low_height, high_height = struct.unpack_from("<B3xHBHB", head)
    width_px, height_px = (low_width | high_width << 16) + 1, (low_height | high_height << 16) + 1
    found, animated = _gather(data, chunks), bool(flags & ANIMATION)
    has_alpha = bool(flags & ALPHA) or (found.has_alpha_plane and not animated)
    if animated and not found.num_frames:
        raise Damaged
    if found.pixels is not None and not animated:
        if (found.pixels.width_px, found.pixels.height_px) != (width_px, height_px):
            raise Damaged
        has_alpha = has_alpha if found.pixels.has_alpha is None else found.pixels.has_alpha
    return PictureHeader(
        format="webp",
        width_px=width_px,
        height_px=height_px,
        orientation=orientation_of(found.exif, found.xmp),
        mode="RGBA" if has_alpha else "RGB",
        num_frames=found.num_frames if animated else 1,
    )


def _gather(data: memoryview, chunks: Iterator[tuple[bytes, int, int]]) -> _Found:
    found, num_chunks = _Found(), 1
    for kind, start, end in chunks:
        num_chunks += 1
        match kind:
            case b"ANMF":
                found.num_frames += 1
            case b"ALPH":
                found.has_alpha_plane = True
            case b"VP8 " | b"VP8L":
                found.pixels = found.pixels or _pixels_of(kind, data[start:end])
            case b"EXIF":
                found.exif = found.exif or bytes(data[start:end])
            case b"XMP ":
                found.xmp = found.xmp or bytes(data[start:end])
    if num_chunks >= MAX_BOXES:
        raise InvalidPicture(f"the webp has {MAX_BOXES:,} chunks or more", fix="send fewer frames")
    return found


def _pixels_of(kind: bytes, body: memoryview) -> _Pixels | None:
    """None for a chunk that holds no pixels, or whose start is not that of pixels."""
    if kind == b"VP8 " and len(body) >= 10:
        start, width_px, height_px = struct.unpack_from("<3x3sHH", body)
        if start == LOSSY_START:
            return _Pixels(width_px=width_px & SIDE_BITS, height_px=height_px & SIDE_BITS, has_alpha=None)
    if kind == b"VP8L" and len(body) >= 5:
        start, bits = struct.unpack_from("<BI", body)
        if start == LOSSLESS_START:
            width_px, height_px = (bits & SIDE_BITS) + 1, (bits >> 14 & SIDE_BITS) + 1
            return _Pixels(width_px=width_px, height_px=height_px, has_alpha=bool(bits >> 28 & 1))
    return None
