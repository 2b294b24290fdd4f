"""Pictures made in code, for the tests of this room."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image

from proteus.limits import ImageLimits

LIMITS = ImageLimits(
    max_bytes=200_000,
    max_pixels=1_000_000,
    min_side_px=8,
    max_side_px=2_000,
    max_aspect_ratio=20.0,
    max_pictures=4,
    formats=["png", "jpeg", "webp", "gif", "bmp"],
)


def noise(width_px: int, height_px: int, seed: int = 0) -> Image.Image:
    """Colours that differ at every pixel, smooth enough for a codec."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (9, 7, 3), dtype=np.uint8))
    return small.resize((width_px, height_px), Image.Resampling.BICUBIC)


def encode(picture: Image.Image, name: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    picture.save(out, name, **options)
    return out.getvalue()
