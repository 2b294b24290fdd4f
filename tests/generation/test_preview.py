from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from proteus.generation.preview import LinearPreview
from tests.generation.schedulers import random_noise

# Two channels: the first is red, the second green less half of blue; on a dark blue ground.
MATRIX = [[1.0, 0.0, 0.0], [0.0, 1.0, -0.5], [0.0, 0.0, 0.25]]


def test_each_latent_is_a_colour_of_its_own() -> None:
    clean = np.array([[[0.0, 1.0]], [[0.0, 0.5]]], dtype=np.float32)
    pixels = LinearPreview(MATRIX)(clean, width_px=2, height_px=1)
    assert (pixels.dtype, pixels.tolist()) == (np.uint8, [[[0, 0, 64], [255, 128, 0]]])


def test_colours_beyond_the_range_are_clipped() -> None:
    clean = np.array([[[9.0, -9.0]], [[-9.0, 9.0]]], dtype=np.float32)
    assert LinearPreview(MATRIX)(clean, width_px=2, height_px=1).tolist() == [[[255, 0, 255], [0, 255, 0]]]


@pytest.mark.parametrize(("height", "width"), [(8, 8), (8, 12)])
def test_a_preview_has_the_size_of_the_picture_and_is_smooth(height: int, width: int) -> None:
    preview = LinearPreview(MATRIX)
    clean = random_noise(3, (2, height, width))
    small = preview(clean, width_px=width, height_px=height)
    large = preview(clean, width_px=8 * width, height_px=8 * height)
    assert large.shape == (8 * height, 8 * width, 3)
    resized = Image.fromarray(small).resize((8 * width, 8 * height), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(large, np.asarray(resized))


def test_a_latent_of_one_value_is_a_picture_of_one_colour() -> None:
    pixels = LinearPreview(MATRIX)(np.full((2, 8, 8), 0.4, dtype=np.float32), width_px=64, height_px=64)
    assert np.unique(pixels.reshape(-1, 3), axis=0).tolist() == [[102, 102, 13]]
