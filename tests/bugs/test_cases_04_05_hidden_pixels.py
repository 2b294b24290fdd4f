"""Seen: a person sees one picture and the model another ("AlphaDog"): pixels behind full transparency reach the model.

Cause: transparency (an alpha channel, or the tRNS chunk of P, L and RGB) was dropped by a plain conversion to RGB.
Right: what is transparent shows the background of the contract, before anything else reads the colours. The reported
pictures are black or red when read plainly and white when read rightly.
"""

from __future__ import annotations

import pytest
from PIL import Image

from proteus.preprocess.decode import decode
from tests.preprocess.pictures import LIMITS, encode

SIZE = (64, 16)


def palette_hidden(index: int, transparency: int | bytes) -> bytes:
    picture = Image.new("P", (300, 16), index)
    picture.putpalette([0, 0, 0] * 256)
    return encode(picture, transparency=transparency)


HIDDEN = {
    "4: index 0 of a palette": palette_hidden(0, 0),
    "4: every entry of a palette": palette_hidden(3, bytes(256)),
    "4: one grey": encode(Image.new("L", SIZE, 0), transparency=0),
    "4: one colour": encode(Image.new("RGB", SIZE, (1, 2, 3)), transparency=(1, 2, 3)),
    "4: black of two": encode(Image.new("1", SIZE, 0), transparency=0),
    "4: index of a GIF": encode(Image.new("P", SIZE, 5), "GIF", transparency=5),
    "5: red behind no alpha": encode(Image.new("RGBA", SIZE, (255, 0, 0, 0))),
    "5: red behind no alpha, WebP": encode(Image.new("RGBA", SIZE, (255, 0, 0, 0)), "WEBP", lossless=True, exact=True),
    "5: red behind no alpha, TIFF": encode(Image.new("RGBA", SIZE, (255, 0, 0, 0)), "TIFF"),
    "5: grey behind no alpha": encode(Image.new("LA", SIZE, (9, 0))),
}


@pytest.mark.parametrize("data", HIDDEN.values(), ids=HIDDEN)
@pytest.mark.parametrize("background", ["#ffffff", "#204060"])
def test_hidden_pixels_show_the_background(data: bytes, background: str) -> None:
    limits = LIMITS.model_copy(update={"background": background})
    rgb = decode(data, limits)
    assert (rgb == limits.background_rgb).all(), rgb[0, 0]


@pytest.mark.parametrize("data", HIDDEN.values(), ids=HIDDEN)
def test_hidden_pixels_do_not_come_back_when_the_picture_is_made_smaller(data: bytes) -> None:
    assert (decode(data, LIMITS, (32, 8)) == 255).all()
