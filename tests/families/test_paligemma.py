from __future__ import annotations

from pathlib import Path

import pytest

from proteus.families.checkpoint import UnsupportedCheckpoint
from proteus.families.family import EncoderInput, MediaPlan, PlanRefused
from tests.families.published_folders import ABSENT, load_changed
from tests.families.published_llava import PUBLISHED

PALIGEMMA = PUBLISHED["PaliGemma-3B-224"]
LAYER = 2 * 256 * (4 * 1152**2 + 2 * 1152 * 4304) + 4 * 256**2 * 1152


@pytest.mark.parametrize(("width_px", "height_px"), [(1, 1), (640, 480), (7000, 100), (2, 500)])
def test_plan_is_the_same_for_every_picture(tmp_path: Path, width_px: int, height_px: int) -> None:
    assert load_changed(tmp_path, PALIGEMMA).plan_image(width_px, height_px) == MediaPlan(
        modality="image",
        visual_tokens=256,
        wrapper_tokens=0,
        encoder_input=EncoderInput(kind="tiles", count=1, rows=224, cols=224),
        patches=256,
        encoder_flops=2 * 256 * 588 * 1152 + 27 * LAYER + 2 * 256 * 1152 * 2048,
        decode_bytes=3 * width_px * height_px,
        self_kv_bytes=2 * 18 * 256 * 1 * 256 * 2,
    )


def test_larger_pictures_have_more_patches(tmp_path: Path) -> None:
    family = load_changed(
        tmp_path,
        PALIGEMMA,
        {
            "config.json: vision_config.image_size": 448,
            "preprocessor_config.json: size": {"height": 448, "width": 448},
            "preprocessor_config.json: image_seq_length": 1024,
        },
    )
    assert family.plan_image(10, 10).visual_tokens == 1024


def test_a_config_without_parts_has_those_of_the_published_model(tmp_path: Path) -> None:
    absent = {"config.json: text_config": ABSENT, "config.json: vision_config": ABSENT}
    plan = load_changed(tmp_path, PALIGEMMA, absent).plan_image(10, 10)
    assert (plan.visual_tokens, plan.self_kv_bytes) == (256, 2 * 18 * 256 * 256 * 2)


def test_a_picture_without_pixels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanRefused, match="picture of 0x9 px"):
        load_changed(tmp_path, PALIGEMMA).plan_image(0, 9)


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        ("preprocessor_config.json: image_seq_length", 1024, "vision_config makes 256 patches"),
        ("preprocessor_config.json: image_seq_length", ABSENT, "image_seq_length = None"),
        ("preprocessor_config.json: size", {"height": 448, "width": 448}, "vision_config.image_size = 224"),
        ("config.json: vision_config.model_type", "clip_vision_model", "known are siglip_vision_model"),
        ("config.json: vision_config.patch_size", [14, 16], "square patches"),
    ],
)
def test_settings_that_would_be_counted_wrongly_are_refused_at_load(
    tmp_path: Path, place: str, value: object, words: str
) -> None:
    with pytest.raises(UnsupportedCheckpoint) as caught:
        load_changed(tmp_path, PALIGEMMA, {place: value})
    assert words in str(caught.value)
