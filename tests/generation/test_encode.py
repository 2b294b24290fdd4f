from __future__ import annotations

import io
import json
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from proteus.errors import InvalidPicture, InvalidRequest
from proteus.generation.encode import MAX_EXIF_BYTES, encode, settings_of
from proteus.generation.preview import Pixels
from proteus.limits import DrawnFormat

FORMATS: tuple[DrawnFormat, ...] = ("png", "jpeg", "webp")
SETTINGS: dict[str, Any] = {
    "prompt": 'a red circle, "quoted"\n, grün, 图, 🎨, \u0000 and \ud800',
    "negative_prompt": "",
    "size": "64x48",
    "steps": 20,
    "guidance": 3.1,
    "seed": 2**53 - 1,
}


def picture(height: int = 48, width: int = 64) -> Pixels:
    """A red disc on a slope of grey."""
    rows, columns = np.mgrid[:height, :width]
    pixels = np.repeat((100 + columns)[..., None], 3, axis=2).astype(np.uint8)
    pixels[(rows - 20) ** 2 + (columns - 30) ** 2 < 150] = (220, 20, 30)
    return pixels


def opened(file: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(file))
    image.load()
    return image


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("settings", [SETTINGS, {}])
def test_a_file_tells_its_settings(kind: DrawnFormat, settings: dict[str, Any]) -> None:
    file = encode(picture(), kind, quality=90, settings=settings)
    assert settings_of(file) == settings
    assert opened(file).format == kind.upper()


def test_a_png_is_the_picture_to_the_last_bit() -> None:
    np.testing.assert_array_equal(np.asarray(opened(encode(picture(), "png", quality=1, settings=SETTINGS))), picture())


@pytest.mark.parametrize("kind", ["jpeg", "webp"])
def test_quality_is_paid_in_bytes_and_gives_likeness(kind: DrawnFormat) -> None:
    files = [encode(picture(), kind, quality=quality, settings=SETTINGS) for quality in (10, 60, 95)]
    differences = [np.abs(np.asarray(opened(file)).astype(int) - picture()).mean() for file in files]
    assert [len(file) for file in files] == sorted(len(file) for file in files)
    assert differences == sorted(differences, reverse=True)
    assert differences[-1] < 3


@pytest.mark.parametrize("kind", FORMATS)
def test_equal_pixels_and_settings_give_equal_bytes(kind: DrawnFormat) -> None:
    first, second = (encode(picture(), kind, quality=80, settings=SETTINGS) for _ in range(2))
    assert first == second


def test_the_settings_of_a_png_are_text_that_other_programs_read() -> None:
    text = opened(encode(picture(), "png", quality=90, settings=SETTINGS)).info["proteus"]
    assert text.isascii()
    assert json.loads(text) == SETTINGS


@pytest.mark.parametrize("kind", FORMATS)
def test_a_file_without_settings_carries_none(kind: DrawnFormat) -> None:
    file = encode(picture(), kind, quality=90)
    assert b"Exif" not in file and b"proteus" not in file
    with pytest.raises(InvalidPicture, match="carries no settings"):
        settings_of(file)


def described(text: str) -> bytes:
    exif, file = Image.Exif(), io.BytesIO()
    exif[0x010E] = text
    Image.fromarray(picture()).save(file, "JPEG", exif=exif)
    return file.getvalue()


def vast() -> bytes:
    """A PNG whose header says 60,000 x 60,000."""
    file = encode(picture(), "png", quality=90)
    header = b"IHDR" + struct.pack(">II", 60_000, 60_000) + file[24:29]
    return file[:12] + header + struct.pack(">I", zlib.crc32(header)) + file[33:]


@pytest.mark.parametrize(
    "file",
    [
        b"",
        b"no picture",
        encode(picture(), "png", quality=90, settings=SETTINGS)[:40],
        described("a day at sea"),
        described("[" * 10_000),
        vast(),
    ],
    ids=["nothing", "text", "cut", "another's words", "nested deeply", "a header of gigapixels"],
)
def test_a_file_that_is_not_ours_is_said_to_be_none(file: bytes) -> None:
    with pytest.raises(InvalidPicture, match="fix: give a file as `draw` made it"):
        settings_of(file)


def test_a_description_that_is_json_but_no_settings_is_said_to_be_none() -> None:
    with pytest.raises(InvalidPicture, match="not of a drawn picture"):
        settings_of(described("[1, 2]"))


def test_settings_up_to_the_limit_fit_into_a_jpeg_and_longer_ones_are_refused() -> None:
    overhead = len(json.dumps({"prompt": ""}, separators=(",", ":")))
    most = {"prompt": "x" * (MAX_EXIF_BYTES - overhead)}
    assert settings_of(encode(picture(), "jpeg", quality=90, settings=most)) == most
    longer = {"prompt": most["prompt"] + "x"}
    with pytest.raises(InvalidRequest, match=r"65,001 bytes.*limit: 65,000.*ask for png"):
        encode(picture(), "jpeg", quality=90, settings=longer)
    for kind in ("png", "webp"):
        assert settings_of(encode(picture(), kind, quality=90, settings=longer)) == longer
