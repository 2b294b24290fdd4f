from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from proteus.families.checkpoint import UnsupportedCheckpoint
from proteus.families.family import EncoderInput, MediaPlan, PlanRefused
from tests.families.qwen_folders import ABSENT, family_of

NAME = "Llama-3.2-11B-Vision"
IMAGES = "preprocessor_config.json:"
VISION = "config.json:vision_config."
ROWS = 1601  # of a tile: 40 x 40 patches and the class token


@pytest.mark.parametrize(
    ("height_px", "width_px", "tiles"),
    [
        (336, 336, 1),
        (480, 640, 2),
        (640, 480, 2),
        (1080, 1920, 4),
        (3024, 4032, 4),
        (1, 1, 1),
        (10, 1000, 2),
        (1000, 10, 2),
        (100, 7000, 4),
        (4000, 30, 4),
        (2, 500, 1),
    ],
)
def test_rows_are_those_of_the_tiles_in_use(tmp_path: Path, height_px: int, width_px: int, tiles: int) -> None:
    plan = family_of(tmp_path, NAME).plan_image(width_px, height_px)
    assert (plan.cross_rows, plan.visual_tokens, plan.wrapper_tokens) == (tiles * ROWS, 1, 0)


def test_a_picture_without_pixels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanRefused, match="sides of 1 px or more"):
        family_of(tmp_path, NAME).plan_image(560, 0)


def test_plan_of_a_vga_picture(tmp_path: Path) -> None:
    padded = 4 * 1608
    layers = 40 * (2 * padded * (4 * 1280**2 + 2 * 1280 * 5120) + 4 * padded**2 * 1280)
    assert family_of(tmp_path, NAME).plan_image(640, 480) == MediaPlan(
        modality="image",
        visual_tokens=1,
        wrapper_tokens=0,
        encoder_input=EncoderInput(kind="tiles", count=4, rows=560, cols=560),
        patches=6400,
        encoder_flops=2 * 6400 * 588 * 1280 + layers + 2 * 4 * ROWS * 7680 * 4096,
        decode_bytes=921_600,
        self_kv_bytes=2 * 32 * 8 * 128 * 2,
        cross_kv_bytes=2 * ROWS * 2 * 8 * 8 * 128 * 2,
        cross_rows=2 * ROWS,
    )


def test_layers_with_cross_attention_are_not_layers_with_self_attention(tmp_path: Path) -> None:
    text = "config.json:text_config."
    changes = {f"{text}num_hidden_layers": 10, f"{text}cross_attention_layers": [1, 8, 38]}
    language = family_of(tmp_path, NAME, changes).language
    assert (language.layers, language.cross_layers) == (8, 2)


def test_absent_keys_take_the_defaults_of_transformers(tmp_path: Path) -> None:
    absent = {f"{VISION}{key}": ABSENT for key in ("hidden_size", "max_num_tiles", "supported_aspect_ratios")}
    absent |= {f"{VISION}{key}": ABSENT for key in ("vision_output_dim", "intermediate_layers_indices")}
    absent |= {"config.json:text_config": ABSENT, f"{IMAGES}max_image_tiles": ABSENT}
    assert family_of(tmp_path, NAME, absent) == family_of(tmp_path, NAME)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (f"{IMAGES}do_resize", False, "do_resize"),
        (f"{IMAGES}do_pad", False, "do_pad"),
        (f"{IMAGES}size", {"height": 448, "width": 448}, "vision_config.image_size"),
        (f"{IMAGES}size", {"height": 560, "width": 448}, "equal sides"),
        (f"{IMAGES}max_image_tiles", 6, "vision_config.max_num_tiles"),
        (f"{IMAGES}image_processor_type", "CLIPImageProcessor", "image_processor_type"),
        (f"{VISION}supported_aspect_ratios", [[1, 1]], "every canvas of up to 4 tiles"),
        (f"{VISION}vision_output_dim", 1280, "7680 of its layers"),
    ],
)
def test_settings_that_cannot_be_served_are_refused_by_name(tmp_path: Path, key: str, value: Any, said: str) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=said):
        family_of(tmp_path, NAME, {key: value})
