"""Embedded ICC profiles -> sRGB. A profile that cannot be used leaves the colours as they are, as if it were sRGB.

The intent is perceptual. Colour facts outside of a profile (PNG's gAMA and cHRM, HEIF's nclx) are not read.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from PIL import Image, ImageCms

LAB: Final = "LAB"
SPACES = {"RGB ": "RGB", "GRAY": "L", "CMYK": "CMYK"}  # of a profile -> mode of the pixels it describes
USABLE_FOR = {"RGB": ("RGB", "L"), "L": ("L",), "CMYK": ("CMYK",)}
UNUSABLE = (ImageCms.PyCMSError, OSError, ValueError, TypeError, AttributeError, KeyError)

Recolour = Callable[[Image.Image], Image.Image]


@dataclass(frozen=True, slots=True)
class Profile:
    """How pixels of one mode become sRGB."""

    mode: str
    transform: ImageCms.ImageCmsTransform

    def __call__(self, colours: Image.Image) -> Image.Image:
        """Colours of mode L, RGB or CMYK -> RGB."""
        return self.transform.apply(colours if colours.mode == self.mode else colours.convert(self.mode))


def recolour(icc: bytes | None, mode: str) -> Recolour:
    """What turns colours of `mode` (L, RGB, CMYK or LAB) into sRGB, given the file's profile."""
    if mode == LAB:
        return Profile(LAB, _transform(ImageCms.ImageCmsProfile(ImageCms.createProfile(LAB)), LAB))
    profile = _read(icc, mode) if icc else None
    return profile if profile is not None else lambda colours: colours.convert("RGB")


def _read(icc: bytes, mode: str) -> Profile | None:
    """None for a profile that is broken, of another kind of colour, or that says sRGB in other words."""
    try:
        parsed = ImageCms.ImageCmsProfile(io.BytesIO(icc))
        space = SPACES[parsed.profile.xcolor_space]
        if mode not in USABLE_FOR[space]:
            return None
        profile = Profile(space, _transform(parsed, space))
        return profile if _moves_colours(profile) else None
    except UNUSABLE:
        return None


def _transform(source: ImageCms.ImageCmsProfile, mode: str) -> ImageCms.ImageCmsTransform:
    return ImageCms.ImageCmsTransform(source, _srgb(), mode, "RGB")


@lru_cache(maxsize=1)
def _srgb() -> ImageCms.ImageCmsProfile:
    return ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB"))


def _moves_colours(profile: Profile) -> bool:
    """Whether any colour of a sample moves by more than one level: most files say sRGB, and keep every pixel so."""
    sample = _sample(profile.mode)
    if sample is None:
        return True
    plain, moved = (np.asarray(picture, dtype=np.int16) for picture in (sample.convert("RGB"), profile(sample)))
    return bool(np.abs(moved - plain).max() > 1)


@lru_cache(maxsize=2)
def _sample(mode: str) -> Image.Image | None:
    """A grid over all colours of the mode; none for inks, which are never sRGB."""
    levels = np.linspace(0, 255, 18).round().astype(np.uint8)
    if mode == "RGB":
        grid = np.stack(np.meshgrid(levels, levels, levels), axis=-1)
        return Image.fromarray(grid.reshape(18, -1, 3))
    return Image.fromarray(np.arange(256, dtype=np.uint8)[None]) if mode == "L" else None
