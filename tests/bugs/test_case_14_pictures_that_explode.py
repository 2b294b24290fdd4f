"""Seen: a file of 20 kB takes 500 MB when it is decoded, and the server with it.

Cause: the size was looked at after decoding, or left to the decoder's own warning, which some sizes slip under.
Right: refused from the header with the limit that it breaks (413), before a decoder sees it: the decoders are taken
away here, so that a refusal after decoding would fail otherwise.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from proteus.deployment import Deployment
from proteus.errors import MediaTooLarge
from proteus.preprocess import decode as module
from proteus.preprocess.decode import decode
from tests.preprocess.pictures import encode, png_of_one_bit

LIMITS = Deployment.load(Path(__file__).parents[2] / "deployments" / "demo.toml").image


@pytest.mark.parametrize("side_px", [13_400, 13_000, 9_400, 5_001])
def test_bomb_of_one_bit_is_refused_from_its_header(side_px: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OPENERS", {})
    data = png_of_one_bit(side_px)
    assert len(data) < 23_000
    with pytest.raises(MediaTooLarge, match=r"\[image\] max_(side_px = 10,000|pixels = 25,000,000)") as caught:
        decode(data, LIMITS)
    assert caught.value.http_status == 413


@pytest.mark.parametrize(
    ("name", "options"), [("GIF", {}), ("WEBP", {"lossless": True}), ("TIFF", {"compression": "group4"})]
)
def test_bomb_of_another_format_is_refused_from_its_header(
    name: str, options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = encode(Image.new("1", (9_000, 3_000)), name, **options)
    assert len(data) < 200_000
    monkeypatch.setattr(module, "OPENERS", {})
    with pytest.raises(MediaTooLarge, match=r"max_pixels = 25,000,000"):
        decode(data, LIMITS)
