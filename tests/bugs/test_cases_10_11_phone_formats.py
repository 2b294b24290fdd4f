"""Seen: pictures of phones (HEIC, often named .jpg) and AVIF fail with an error that names nothing.

Cause: the decoder was chosen by name or declared type, or there was none.
Right: the content decides. Both are decoded; where a deployment leaves one out, the error names the format and those
that are taken. No name or type is an argument of anything here, so that none can be trusted.
"""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from proteus.errors import InvalidPicture
from proteus.preprocess.decode import decode
from tests.preprocess.pictures import LIMITS, encode

NAMES = {"heic": "HEIF", "avif": "AVIF"}


@pytest.mark.parametrize("name", NAMES)
def test_picture_of_64_by_64_is_decoded(name: str) -> None:
    rgb = decode(encode(Image.new("RGB", (64, 64), (200, 60, 20)), NAMES[name], quality=100), LIMITS)
    assert rgb.shape == (64, 64, 3)
    assert np.abs(rgb.astype(int) - (200, 60, 20)).max() < 8


@pytest.mark.parametrize("brand", [b"heic", b"heix", b"mif1", b"avif"])
def test_reported_bytes_that_only_claim_to_be_one_are_refused(brand: bytes) -> None:
    with pytest.raises(InvalidPicture, match="invalid_picture: .*fix: "):
        decode(b"\0\0\0\x18ftyp" + brand + b"\0\0\0\0" + brand + b"mif1", LIMITS)


@pytest.mark.parametrize("name", NAMES)
def test_deployment_without_the_format_names_it(name: str) -> None:
    limits = LIMITS.model_copy(update={"formats": ["png", "jpeg"]})
    data = encode(Image.new("RGB", (64, 64)), NAMES[name])
    with pytest.raises(InvalidPicture, match=rf"format {name}; limit: \[image\] formats = png, jpeg"):
        decode(data, limits)
