"""The first bytes of a picture to its header, where they tell all that a plan needs: size, turn, whether it moves.

A PNG that tells its turn behind its pixels, which hardly any program writes, counts as not turned.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import NoReturn

from proteus.errors import InvalidPicture
from proteus.media.header import PictureHeader
from proteus.media.probe import probe_picture

PNG_CHUNKS_AT, CHUNK_HEAD, CRC_BYTES = 8, struct.Struct(">I4s"), 4
VP8X_FLAGS_AT = 20
MORE_FOLLOWS = 0x08 | 0x04 | 0x02  # EXIF, XMP, animation (WebP container specification, "Extended File Format")
SEQUENCES = (b"msf1", b"hevc", b"hevx", b"avis")  # brands of files whose frames are listed anywhere


def _png(data: bytes) -> bool:
    """Whether its image data begin there, which all but the turn stands before."""
    at = PNG_CHUNKS_AT
    while at + CHUNK_HEAD.size <= len(data):
        length, kind = CHUNK_HEAD.unpack_from(data, at)
        if kind == b"IDAT":
            return True
        at += length + CHUNK_HEAD.size + CRC_BYTES
    return False


def _webp(data: bytes) -> bool:
    return data[12:16] != b"VP8X" or not data[VP8X_FLAGS_AT] & MORE_FOLLOWS


def _heif(data: bytes) -> bool:
    """Brands stand in the first box; size and turn in `meta`, which has to be there whole."""
    brands = data[8 : int.from_bytes(data[:4], "big")]
    meta = data.find(b"meta") - 4
    length = int.from_bytes(data[meta : meta + 4], "big")
    return not any(brand in brands for brand in SEQUENCES) and meta + length <= len(data)


# Formats that are not here tell their frames to the end of the file.
TELLS: Mapping[str, Callable[[bytes], bool]] = {
    "png": _png,
    "jpeg": lambda data: True,
    "bmp": lambda data: True,
    "webp": _webp,
    "heic": _heif,
    "avif": _heif,
}


def probe_beginning(data: bytes) -> PictureHeader:
    """Raises InvalidPicture, also where the header needs more than is there."""
    try:
        header = probe_picture(data)
    except InvalidPicture as error:
        if error.__cause__ is not None:  # bytes are missing
            _needs_more(data, error)
        raise
    if header.format not in TELLS or not TELLS[header.format](data):
        _needs_more(data, None)
    return header


def _needs_more(data: bytes, cause: Exception | None) -> NoReturn:
    raise InvalidPicture(
        f"its first {len(data):,} bytes do not tell its size, turn and frames",
        fix="send more of the file, or all of it",
    ) from cause
