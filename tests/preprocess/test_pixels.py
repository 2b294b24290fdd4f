from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image

from proteus.families.llava import CLIP_MEAN, CLIP_STD, ResizeRule
from proteus.preprocess.pixels import resized_px, to_pixel_values
from tests.preprocess.pictures import noise

SIZES = [
    (8, 8),
    (96, 96),
    (97, 95),
    (336, 336),
    (640, 480),
    (480, 641),
    (33, 200),
    (200, 10),
    (95, 96),
    (50, 50),
    (7, 9),
]


def rule(**changes: Any) -> ResizeRule:
    values: dict[str, Any] = {
        "shortest_edge_px": 96,
        "size_px": None,
        "resample": 3,
        "crop_px": (96, 96),
        "rescale_factor": 1 / 255,
        "mean": CLIP_MEAN,
        "std": CLIP_STD,
    }
    return ResizeRule(**{**values, **changes})


# What each rule is called by transformers' own class.
RULES: list[tuple[ResizeRule, dict[str, Any]]] = [
    (rule(), {"size": {"shortest_edge": 96}}),
    (rule(shortest_edge_px=None, size_px=(96, 96)), {"size": {"height": 96, "width": 96}, "do_center_crop": False}),
    (rule(shortest_edge_px=None, size_px=(96, 96), crop_px=None), {"size": {"height": 96, "width": 96}}),
    (rule(resample=2), {"size": {"shortest_edge": 96}, "resample": 2}),
    (rule(shortest_edge_px=None, size_px=None), {"do_resize": False}),
    (rule(shortest_edge_px=61), {"size": {"shortest_edge": 61}}),
    (rule(mean=None, std=None), {"size": {"shortest_edge": 96}, "do_normalize": False}),
    (rule(rescale_factor=None), {"size": {"shortest_edge": 96}, "do_rescale": False}),
    (rule(mean=(0.5, 0.5, 0.5), std=(0.25, 0.5, 1.0)), {"image_mean": [0.5] * 3, "image_std": [0.25, 0.5, 1.0]}),
]


@pytest.mark.oracle
@pytest.mark.parametrize(("ours", "theirs"), RULES)
def test_pixels_equal_the_image_processor_of_transformers(ours: ResizeRule, theirs: dict[str, Any]) -> None:
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    settings = {"size": {"shortest_edge": 96}, "crop_size": {"height": 96, "width": 96}, **theirs}
    processor = CLIPImageProcessorPil(**settings)
    for seed, (width_px, height_px) in enumerate(SIZES):
        picture = noise(width_px, height_px, seed)
        wanted = np.asarray(processor(images=picture, return_tensors="np")["pixel_values"][0])
        got = to_pixel_values(np.asarray(picture), ours)
        assert got.dtype == np.float32
        assert got.flags.c_contiguous
        assert np.array_equal(got, wanted), (width_px, height_px)


def test_shortest_edge_keeps_the_aspect_ratio_as_integers_do() -> None:
    assert resized_px(480, 640, rule()) == (96, 128)
    assert resized_px(641, 480, rule()) == (128, 96)
    assert resized_px(10, 199, rule()) == (96, 1910)


def test_crop_of_a_smaller_picture_is_padded_with_black() -> None:
    ours = rule(shortest_edge_px=None, mean=None, std=None, rescale_factor=None, crop_px=(9, 8))
    values = to_pixel_values(np.asarray(Image.new("RGB", (4, 4), (255, 255, 255))), ours)
    assert values.shape == (3, 9, 8)
    assert values[0].sum() == 16 * 255
