"""A picture of an unfinished latent by one matrix, far cheaper than the decoder. Z latent channels, h, w in latents."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image

from proteus.generation.task import Floats

Pixels = npt.NDArray[np.uint8]


class LinearPreview:
    """Clean latent to RGB, each latent on its own, then enlarged."""

    def __init__(self, matrix: Sequence[Sequence[float]]) -> None:
        """`matrix` is `DrawManifest.preview`, (Z + 1, 3): channels, and 1, to RGB in 0…1."""
        whole = np.array(matrix, dtype=np.float32)
        self._matrix, self._offset = whole[:-1], whole[-1]

    def __call__(self, clean: Floats, *, width_px: int, height_px: int) -> Pixels:
        """Clean latent (Z, h, w) to pixels (height_px, width_px, 3)."""
        rgb = np.einsum("zhw,zc->hwc", clean, self._matrix) + self._offset
        small = np.rint(rgb.clip(0.0, 1.0) * 255).astype(np.uint8)
        return np.asarray(Image.fromarray(small).resize((width_px, height_px), Image.Resampling.BILINEAR))
