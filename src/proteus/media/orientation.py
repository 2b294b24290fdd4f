"""How a picture is to be turned, from the metadata it carries: EXIF first, XMP where EXIF says nothing.

Metadata that cannot be read turn nothing: a picture is not refused for its camera's mistakes.
"""

from __future__ import annotations

import re
import struct

from proteus.media.damage import Damaged
from proteus.media.ifd import Directory, first_directory, read_directory

ORIENTATION = 0x0112
UPRIGHT = 1
_EXIF_HEADS = re.compile(rb"(Exif\x00\x00){0,2}")
_XMP = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')


def orientation_of(exif: bytes | memoryview, xmp: bytes | memoryview = b"") -> int:
    """1 to 8, as EXIF 2.32 §4.6.4 numbers them; 1 when neither says, or says something else.

    `exif` may start with its JPEG identifier.
    """
    head = _EXIF_HEADS.match(exif)
    body = exif[head.end() :] if head else exif
    try:
        return directory_orientation(read_directory(body, *first_directory(body)), xmp)
    except (Damaged, struct.error):
        return _settled(None, xmp)


def directory_orientation(directory: Directory, xmp: bytes | memoryview = b"") -> int:
    """As `orientation_of`, for a directory that was read already."""
    try:
        return _settled(next(iter(directory.integers(ORIENTATION)), None), xmp)
    except struct.error:
        return _settled(None, xmp)


def _settled(told: int | None, xmp: bytes | memoryview) -> int:
    if told is None:
        found = _XMP.search(xmp)
        told = int(found[1]) if found else UPRIGHT
    return told if 1 <= told <= 8 else UPRIGHT
