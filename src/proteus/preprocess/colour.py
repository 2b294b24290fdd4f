"""Pixels of any mode -> 8-bit RGB: depth first, then the colour profile, then transparency over the background.

Works in strips, so that a large picture is not held several times over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from proteus.preprocess.depth import DEEP_MODES, to_byte
from proteus.preprocess.profile import Recolour, recolour

Rgb = npt.NDArray[np.uint8]  # (height, width, 3)
Mask = npt.NDArray[np.bool_]

STRIP_PX = 1 << 20
# What a mode is turned into before anything else; a mode that is not here stays, or is read by its own rule.
PLAIN: Mapping[str, str] = {
    "1": "L",
    "La": "LA",
    "PA": "RGBA",
    "RGBa": "RGBA",
    "RGBX": "RGB",
    "YCbCr": "RGB",
    "HSV": "RGB",
}


def to_rgb(picture: Image.Image, background_rgb: tuple[int, int, int]) -> Rgb:
    """A loaded picture, transparency composited over the background."""
    paint = _painter(picture, background_rgb)
    if picture.width * picture.height <= STRIP_PX:
        return np.asarray(paint(picture))
    rgb = np.empty((picture.height, picture.width, 3), dtype=np.uint8)
    top = 0
    for strip in _strips(picture):
        rgb[top : top + strip.height] = np.asarray(paint(strip))
        top += strip.height
    return rgb


def _strips(picture: Image.Image) -> Iterator[Image.Image]:
    rows = max(1, STRIP_PX // picture.width)
    for top in range(0, picture.height, rows):
        yield picture.crop((0, top, picture.width, min(top + rows, picture.height)))


def _painter(picture: Image.Image, background_rgb: tuple[int, int, int]) -> Callable[[Image.Image], Image.Image]:
    plain = _plainer(picture)
    to_srgb: dict[str, Recolour] = {}

    def paint(strip: Image.Image) -> Image.Image:
        colours, alpha = _split(plain(strip))
        if colours.mode not in to_srgb:
            to_srgb[colours.mode] = recolour(picture.info.get("icc_profile"), colours.mode)
        rgb = to_srgb[colours.mode](colours)
        return rgb if alpha is None else Image.composite(rgb, Image.new("RGB", rgb.size, background_rgb), alpha)

    return paint


def _plainer(picture: Image.Image) -> Callable[[Image.Image], Image.Image]:
    """What makes a strip of L, LA, RGB, RGBA, CMYK or LAB, the transparent colour turned into alpha."""
    if picture.mode == "P":
        mode = "RGBA" if picture.has_transparency_data else "RGB"
        return lambda strip: strip.convert(mode)
    key = picture.info.pop("transparency", None)
    if picture.mode in DEEP_MODES:
        grey = to_byte(picture, lambda: _strips(picture))
        return lambda strip: _keyed(Image.fromarray(grey(np.asarray(strip))), np.asarray(strip), key)
    mode = PLAIN.get(picture.mode, picture.mode)
    return lambda strip: _keyed(strip if strip.mode == mode else strip.convert(mode), None, key)


def _keyed(plain: Image.Image, values: npt.NDArray[Any] | None, key: object) -> Image.Image:
    """`plain`, transparent where `values` (or else its own) equal the file's transparent colour."""
    if key is None or plain.mode not in ("L", "RGB"):
        return plain
    values = np.asarray(plain) if values is None else values
    same: Mask = values == np.asarray(key)
    hidden = same if same.ndim == 2 else same.all(axis=-1)
    plain = plain.copy()
    plain.putalpha(Image.fromarray(np.where(hidden, 0, 255).astype(np.uint8)))
    return plain


def _split(plain: Image.Image) -> tuple[Image.Image, Image.Image | None]:
    """Colours and alpha; no alpha where the mode has none."""
    if plain.mode in ("LA", "RGBA"):
        return plain.convert("L" if plain.mode == "LA" else "RGB"), plain.getchannel("A")
    return plain, None
