from __future__ import annotations

import struct

import pytest

from proteus.errors import InvalidPicture
from proteus.media.bmp import probe_bmp
from proteus.media.damage import Damaged


def bmp(size: int, body: bytes, palette: bytes = b"") -> memoryview:
    return memoryview(b"BM" + bytes(12) + (struct.pack("<I", size) + body).ljust(size, b"\0") + palette)


def windows(
    width_px: int = 67,
    height_px: int = 35,
    *,
    size: int = 40,
    bits: int = 24,
    compression: int = 0,
    colours: int = 0,
    masks: tuple[int, ...] = (),
    palette: bytes = b"",
) -> memoryview:
    body = struct.pack("<iiHHIIIIII", width_px, height_px, 1, bits, compression, 0, 0, 0, colours, 0)
    return bmp(size, body + struct.pack(f"<{len(masks)}I", *masks), palette)


def greys(number: int, width: int = 4) -> bytes:
    values = (0, 255) if number == 2 else range(number)
    return b"".join(bytes((value,) * 3) + b"\0" * (width - 3) for value in values)


@pytest.mark.parametrize("size", [40, 52, 56, 64, 108, 124])
def test_every_windows_header_tells_the_size(size: int) -> None:
    header = probe_bmp(windows(size=size))
    assert (header.width_px, header.height_px, header.mode) == (67, 35, "RGB")


def test_height_below_zero_means_rows_from_top_to_bottom() -> None:
    assert probe_bmp(windows(67, -35)).upright_px == (67, 35)


def test_header_of_os2_is_read() -> None:
    header = probe_bmp(bmp(12, struct.pack("<HHHH", 67, 35, 1, 8), greys(256, 3)))
    assert (header.width_px, header.height_px, header.mode) == (67, 35, "L")


@pytest.mark.parametrize(
    ("bits", "colours", "palette", "mode"),
    [
        (1, 0, greys(2), "1"),
        (1, 1, greys(1), "1"),
        (4, 0, greys(16), "L"),
        (8, 0, greys(256), "L"),
        (8, 3, greys(3), "L"),
        (8, 0, greys(255), "P"),
        (8, 0, greys(256)[::-1], "P"),
        (8, 257, greys(256), "P"),
        (16, 0, b"", "RGB"),
        (24, 0, b"", "RGB"),
        (32, 0, b"", "RGB"),
    ],
)
def test_palette_of_greys_in_order_is_none(bits: int, colours: int, palette: bytes, mode: str) -> None:
    assert probe_bmp(windows(bits=bits, colours=colours, palette=palette)).mode == mode


COLOUR_MASKS = (0xFF0000, 0xFF00, 0xFF)


@pytest.mark.parametrize(
    ("size", "masks", "mode"),
    [
        (124, (*COLOUR_MASKS, 0xFF000000), "RGBA"),
        (124, (*COLOUR_MASKS, 0), "RGB"),
        (124, (0, 0, 0, 0), "RGBA"),
        (40, COLOUR_MASKS, "RGB"),
        (40, (*COLOUR_MASKS, 0xFF000000), "RGB"),  # the fourth is a pixel
    ],
)
def test_transparency_is_told_by_a_mask(size: int, masks: tuple[int, ...], mode: str) -> None:
    assert probe_bmp(windows(size=size, bits=32, compression=3, masks=masks)).mode == mode


@pytest.mark.parametrize(
    "data",
    [b"BM", b"BM" + bytes(12) + b"\x28\0\0\0", windows(size=41), windows(0, 5), windows(-5, 5), windows(5, 0)],
)
def test_broken_head_is_damage(data: bytes) -> None:
    with pytest.raises((Damaged, struct.error)):
        probe_bmp(memoryview(data))


@pytest.mark.parametrize(("bits", "compression"), [(24, 4), (24, 5), (2, 0), (64, 0)])
def test_kind_that_nobody_decodes_is_named(bits: int, compression: int) -> None:
    with pytest.raises(InvalidPicture, match=f"{bits} bits per pixel and compression {compression}"):
        probe_bmp(windows(bits=bits, compression=compression))
