from __future__ import annotations

import contextlib
import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from proteus.errors import InvalidPicture, MediaTooLarge
from proteus.preprocess.decode import decode
from tests.preprocess.pictures import LIMITS, encode, noise


@pytest.mark.parametrize("name", ["PNG", "BMP"])
def test_lossless_pictures_keep_every_pixel(name: str) -> None:
    picture = noise(31, 17)
    assert np.array_equal(decode(encode(picture, name), LIMITS), np.asarray(picture))


@pytest.mark.parametrize("name", ["JPEG", "WEBP", "GIF"])
def test_lossy_pictures_equal_pillows_own_reading(name: str) -> None:
    data = encode(noise(31, 17), name)
    assert np.array_equal(decode(data, LIMITS), np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation: int) -> None:
    upright = Image.new("RGB", (24, 16), (0, 0, 0))
    upright.paste((255, 0, 0), (0, 0, 24, 4))  # a red top edge
    # Turn the stored pixels so that the viewer's turn brings the red edge back to the top.
    undo = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    stored = upright.transpose(undo[orientation]) if orientation in undo else upright
    exif = Image.Exif()
    exif[0x0112] = orientation
    rgb = decode(encode(stored, "PNG", exif=exif), LIMITS)
    assert np.array_equal(rgb, np.asarray(upright))


def test_transparency_is_composited_over_white() -> None:
    hidden = Image.new("RGBA", (10, 10), (255, 0, 0, 0))
    half = Image.new("RGBA", (10, 10), (0, 0, 0, 128))
    palette = Image.new("P", (10, 10), 0)
    palette.putpalette([0, 0, 0] * 256)
    grey = Image.new("LA", (10, 10), (0, 0))
    assert decode(encode(hidden), LIMITS).min() == 255
    assert abs(int(decode(encode(half), LIMITS)[0, 0, 0]) - 127) <= 1
    assert decode(encode(palette, transparency=0), LIMITS).min() == 255
    assert decode(encode(grey), LIMITS).min() == 255
    assert decode(encode(Image.new("L", (10, 10), 7), transparency=7), LIMITS).min() == 255
    assert decode(encode(Image.new("RGB", (10, 10), (1, 2, 3)), transparency=(1, 2, 3)), LIMITS).min() == 255


@pytest.mark.parametrize("mode", ["1", "L", "P", "CMYK"])
def test_other_modes_become_rgb(mode: str) -> None:
    picture = noise(16, 12).convert(mode)
    data = encode(picture, "JPEG", quality=100) if mode == "CMYK" else encode(picture)
    rgb = decode(data, LIMITS)
    assert rgb.shape == (12, 16, 3)
    assert np.abs(rgb.astype(int) - np.asarray(picture.convert("RGB")).astype(int)).max() <= 12


def test_greys_of_16_bits_keep_their_high_byte() -> None:
    grey = np.linspace(0, 65535, 64 * 64).astype(np.uint16).reshape(64, 64)
    rgb = decode(encode(Image.fromarray(grey)), LIMITS)
    assert np.array_equal(rgb[..., 0], (grey >> 8).astype(np.uint8))


def test_first_frame_of_an_animation_is_taken() -> None:
    frames = [Image.new("RGB", (10, 10), colour) for colour in ((255, 0, 0), (0, 255, 0))]
    for name in ("GIF", "WEBP", "PNG"):
        out = io.BytesIO()
        options = {"lossless": True} if name == "WEBP" else {}
        frames[0].save(out, name, save_all=True, append_images=frames[1:], **options)
        assert decode(out.getvalue(), LIMITS)[5, 5].tolist() == [255, 0, 0]


@pytest.mark.parametrize("name", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_truncated_picture_is_an_error_of_ours(name: str) -> None:
    data = encode(noise(64, 64), name)
    with pytest.raises(InvalidPicture, match="truncated or damaged"):
        decode(data[: len(data) // 2], LIMITS)


@settings(max_examples=300, deadline=None)
@given(
    name=st.sampled_from(["PNG", "JPEG", "WEBP", "GIF", "BMP"]),
    place=st.floats(0, 1, exclude_max=True),
    value=st.integers(0, 255),
)
def test_damaged_byte_gives_a_picture_or_an_error_of_ours(name: str, place: float, value: int) -> None:
    data = bytearray(encode(noise(24, 18), name))
    data[int(place * len(data))] = value
    with contextlib.suppress(InvalidPicture, MediaTooLarge):
        assert decode(bytes(data), LIMITS).shape[2] == 3
