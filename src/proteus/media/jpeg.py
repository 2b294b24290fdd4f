"""JPEG: size, mode and orientation from the marker segments before the first scan; ITU-T T.81 annex B.

A thumbnail lies inside a segment and is skipped with it. What follows the first scan is never looked at.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping

from proteus.errors import InvalidPicture
from proteus.media.damage import Damaged
from proteus.media.header import PictureHeader
from proteus.media.orientation import orientation_of

MAX_SEGMENTS = 1024
MAX_PADDING = 65_536  # bytes between segments, in all
MODES: Mapping[int, str] = {1: "L", 3: "RGB", 4: "CMYK"}  # by components
FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # SOF0 … SOF15; the others are tables
ALONE = frozenset({0x00, 0x01, *range(0xD0, 0xD9)})  # without a length: stuffing, TEM, RST0 … RST7, SOI
# With a length. Not among them: JPG (C8), DHP (DE) and EXP (DF), of kinds that nobody decodes, and reserved ones.
SEGMENTS = frozenset({*range(0xC0, 0xD0), *range(0xDA, 0xDE), *range(0xE0, 0xF0), 0xFE}) - {0xC8}
SOS, APP1 = 0xDA, 0xE1
EXIF_HEAD, XMP_HEAD = b"Exif\0\0", b"http://ns.adobe.com/xap/1.0/\0"
_MARKER = re.compile(rb"[^\xff]*+\xff++([^\xff])", re.DOTALL)
_FRAME = struct.Struct(">BHHB")


def probe_jpeg(data: memoryview) -> PictureHeader:
    """Raises Damaged or struct.error for broken files, InvalidPicture for a kind of JPEG that nobody decodes."""
    frame: tuple[int, int, int, int] | None = None
    exif: list[bytes] = []
    xmp = b""
    for marker, start, end in _segments(data):
        if marker in FRAMES:
            if frame is not None:  # readers differ in which of two counts
                raise Damaged
            frame = _FRAME.unpack_from(data[start:end])
        elif marker == APP1 and data[start : start + len(EXIF_HEAD)] == EXIF_HEAD:
            exif.append(bytes(data[start + len(EXIF_HEAD) : end]))
        elif marker == APP1 and data[start : start + len(XMP_HEAD)] == XMP_HEAD:
            xmp = bytes(data[start + len(XMP_HEAD) : end])
    if frame is None:
        raise Damaged
    bits, height_px, width_px, components = frame
    if not width_px or not height_px:  # a height told only after the scan (DNL) would need the scan
        raise Damaged
    if bits != 8 or components not in MODES:
        raise InvalidPicture(
            f"a jpeg of {components} components with {bits} bits each",
            limit="1, 3 or 4 components of 8 bits",
            fix="save it as an ordinary JPEG or as PNG",
        )
    return PictureHeader(
        format="jpeg",
        width_px=width_px,
        height_px=height_px,
        orientation=orientation_of(b"".join(exif), xmp),
        mode=MODES[components],
    )


def _segments(data: memoryview) -> Iterator[tuple[int, int, int]]:
    """(marker, start of content, end of content) up to the first scan; bytes between are padding."""
    at, total, padding = 2, len(data), MAX_PADDING
    for _ in range(MAX_SEGMENTS):
        found = _MARKER.match(data, at, min(total, at + 2 + padding))
        if found is None:
            raise Damaged
        marker, start = data[found.end() - 1], found.end()
        padding -= start - at - 2
        if marker == SOS:
            return
        if marker in ALONE:
            at = start
            continue
        (length,) = struct.unpack_from(">H", data, start)
        if marker not in SEGMENTS or length < 2 or start + length > total:
            raise Damaged
        yield marker, start + 2, start + length
        at = start + length
    raise InvalidPicture(f"the jpeg has more than {MAX_SEGMENTS:,} segments before its pixels", fix="save it anew")
