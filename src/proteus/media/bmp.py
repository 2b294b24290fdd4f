"""BMP: size and mode from the OS/2 or Windows header, and whether its palette is only grey."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from proteus.errors import InvalidPicture
from proteus.media.damage import Damaged
from proteus.media.header import PictureHeader

CORE_BYTES = 12  # of OS/2's header; all later ones are longer and share a layout
WINDOWS_BYTES = frozenset({40, 52, 56, 64, 108, 124})
MODES: Mapping[int, str] = {1: "P", 4: "P", 8: "P", 16: "RGB", 24: "RGB", 32: "RGB"}  # by bits of a pixel
RAW, BITFIELDS = 0, 3
COMPRESSIONS = frozenset({RAW, 1, 2, BITFIELDS})  # 1 and 2 are run lengths; 4 and 5 would hold a JPEG or a PNG
MASKS_AT = 54  # in the file, whether they belong to the header or follow it
BYTES_WITH_ALPHA_MASK = 56
MAX_COLOURS = 256


def probe_bmp(data: memoryview) -> PictureHeader:
    """A height below zero means rows from top to bottom. Raises Damaged, struct.error or InvalidPicture."""
    (size,) = struct.unpack_from("<I", data, 14)
    if size == CORE_BYTES:
        width_px, height_px, _planes, bits = struct.unpack_from("<HHHH", data, 18)
        compression = colours = 0
    elif size in WINDOWS_BYTES:
        width_px, height_px, _planes, bits, compression, colours = struct.unpack_from("<iiHHI12xI", data, 18)
    else:
        raise Damaged
    if bits not in MODES or compression not in COMPRESSIONS:
        raise InvalidPicture(
            f"a bmp of {bits} bits per pixel and compression {compression}",
            limit=f"{', '.join(map(str, MODES))} bits, compressions 0 to 3",
            fix="save it as PNG",
        )
    if width_px <= 0 or height_px == 0:
        raise Damaged
    mode = MODES[bits]
    if mode == "P":
        mode = _palette_mode(data, 14 + size, colours or 1 << bits, 3 if size == CORE_BYTES else 4)
    elif bits == 32 and compression == BITFIELDS and _has_alpha(data, size):
        mode = "RGBA"
    return PictureHeader(format="bmp", width_px=width_px, height_px=abs(height_px), mode=mode)


def _palette_mode(data: memoryview, start: int, colours: int, width: int) -> str:
    """A palette that holds the greys in their order is none: "1" for two of them, else "L"."""
    if colours > MAX_COLOURS:
        return "P"
    greys = (0, 255) if colours == 2 else range(colours)
    palette = bytes(data[start : start + width * colours])
    if any(palette[width * place : width * place + 3] != bytes((grey,)) * 3 for place, grey in enumerate(greys)):
        return "P"
    return "1" if colours <= 2 else "L"


def _has_alpha(data: memoryview, size: int) -> bool:
    """Four masks of zero are how some programs write four plain bytes."""
    colours = struct.unpack_from("<III", data, MASKS_AT)
    alpha = struct.unpack_from("<I", data, MASKS_AT + 12)[0] if size >= BYTES_WITH_ALPHA_MASK else 0
    return alpha != 0 or not any(colours)
