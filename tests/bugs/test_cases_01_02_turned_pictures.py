"""Seen: photos reach the model lying on their side, in native servers and on GPU decoders as well.

Cause: the orientation that a camera writes beside the pixels was applied on one path of several, or on none.
Right: every format and every path turns the picture, once. A turn is seen here by where a red edge ends up, so a
mirrored or doubly turned picture fails too; none of the eight turns passes for another.
"""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from proteus.media.probe import probe_picture
from proteus.preprocess.decode import decode
from tests.preprocess.pictures import LIMITS, encode, oriented

FORMATS = {
    "JPEG": {"quality": 100, "subsampling": 0},
    "PNG": {},
    "WEBP": {"lossless": True},
    "TIFF": {},
    "HEIF": {"quality": 100, "chroma": 444},
    "AVIF": {"quality": 100},
}


def red_edge_and_green_corner(width_px: int, height_px: int) -> Image.Image:
    """Red along the top, green at its left end: no turn or mirror image of it looks the same."""
    picture = Image.new("RGB", (width_px, height_px))
    picture.paste((255, 0, 0), (0, 0, width_px, 8))
    picture.paste((0, 255, 0), (0, 0, 8, 8))
    return picture


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("name", FORMATS)
def test_red_edge_is_on_top_whatever_way_the_camera_was_held(name: str, orientation: int) -> None:
    upright = red_edge_and_green_corner(48, 32)
    rgb = decode(oriented(upright, orientation, name, **FORMATS[name]), LIMITS)
    assert rgb.shape == (32, 48, 3)
    assert np.abs(rgb[4, 40].astype(int) - (255, 0, 0)).max() < 32
    assert np.abs(rgb[4, 4].astype(int) - (0, 255, 0)).max() < 32
    assert rgb[28].max() < 32


def test_reported_jpeg_of_24_by_16_with_orientation_6_is_16_by_24() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encode(Image.new("RGB", (24, 16)), "JPEG", exif=exif)
    assert probe_picture(data).upright_px == (16, 24)
    assert decode(data, LIMITS).shape == (24, 16, 3)


def test_reported_picture_that_stands_on_its_head_is_put_upright() -> None:
    data = oriented(red_edge_and_green_corner(48, 32), 3, "JPEG", quality=100)
    assert np.abs(decode(data, LIMITS)[4, 40].astype(int) - (255, 0, 0)).max() < 48


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_orientation_that_means_nothing_turns_nothing(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    for name in ("JPEG", "PNG", "WEBP", "TIFF"):
        assert decode(encode(Image.new("RGB", (24, 16)), name, exif=exif.tobytes()), LIMITS).shape == (16, 24, 3)
