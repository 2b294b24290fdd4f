from __future__ import annotations

from pathlib import Path

import pytest

from proteus.families.checkpoint import UnsupportedCheckpoint
from proteus.families.family import EncoderInput, MediaPlan, PlanRefused
from tests.families.published_folders import ABSENT, load_changed, picture_tokens
from tests.families.published_llava import PUBLISHED

ONEVISION = PUBLISHED["LLaVA-OneVision-Qwen2-7B"]
SIZES = {
    (336, 336): 1485,
    (480, 640): 2929,
    (640, 480): 2943,
    (1080, 1920): 7269,
    (3024, 4032): 7309,
    (1, 1): 1485,
    (10, 1000): 811,
    (1000, 10): 891,
    (100, 7000): 1218,
    (4000, 30): 1053,
    (2, 500): 784,
}
LAYER = 2 * 729 * (4 * 1152**2 + 2 * 1152 * 4304) + 4 * 729**2 * 1152
TILE_FLOPS = 2 * 729 * 588 * 1152 + 26 * LAYER + 2 * 729 * (1152 * 3584 + 3584**2)


def test_tokens_are_those_of_the_processor(tmp_path: Path) -> None:
    assert picture_tokens(load_changed(tmp_path, ONEVISION), SIZES) == SIZES


def test_what_the_files_leave_out_is_as_published(tmp_path: Path) -> None:
    absent = {
        "config.json: vision_config": ABSENT,
        "config.json: image_grid_pinpoints": ABSENT,
        "config.json: vision_aspect_ratio": ABSENT,
        "config.json: vision_feature_layer": ABSENT,
        "preprocessor_config.json: image_grid_pinpoints": ABSENT,
        "preprocessor_config.json: size": ABSENT,
        "processor_config.json": ABSENT,
    }
    (tmp_path / "as published").mkdir()
    assert load_changed(tmp_path, ONEVISION, absent) == load_changed(tmp_path / "as published", ONEVISION)


def test_plan_holds_every_cost_of_a_picture(tmp_path: Path) -> None:
    assert load_changed(tmp_path, ONEVISION).plan_image(640, 480) == MediaPlan(
        modality="image",
        visual_tokens=2929,
        wrapper_tokens=0,
        encoder_input=EncoderInput(kind="tiles", count=5, rows=384, cols=384),
        patches=5 * 729,
        encoder_flops=5 * TILE_FLOPS,
        decode_bytes=3 * 640 * 480,
        self_kv_bytes=2 * 28 * 2929 * 4 * 128 * 2,
    )


def test_pictures_together_are_one_tile_each(tmp_path: Path) -> None:
    plan = load_changed(tmp_path, ONEVISION).plan_image(4032, 3024, images_in_request=2)
    assert (plan.visual_tokens, plan.encoder_input.count, plan.encoder_flops) == (730, 1, TILE_FLOPS)


@pytest.mark.parametrize(
    ("num_frames", "height_px", "width_px", "tokens"),
    [
        (4, 112, 112, 785),
        (8, 240, 320, 1569),
        (9, 240, 320, 1765),
        (16, 480, 640, 3137),
        (1, 64, 64, 197),
        (3, 20, 4000, 589),
    ],
)
def test_frames_are_halved_and_one_newline_ends_the_video(
    tmp_path: Path, num_frames: int, height_px: int, width_px: int, tokens: int
) -> None:
    plan = load_changed(tmp_path, ONEVISION).plan_video(num_frames, width_px, height_px)
    assert (plan.visual_tokens, plan.encoder_flops) == (tokens, num_frames * TILE_FLOPS)
    assert plan.decode_bytes == num_frames * 3 * width_px * height_px


def test_a_lower_cap_shrinks_large_pictures_only(tmp_path: Path) -> None:
    cap = {f"{file}: vision_aspect_ratio": "anyres_max_1" for file in ("config.json", "processor_config.json")}
    capped = load_changed(tmp_path, ONEVISION, cap)
    assert capped.plan_image(336, 336).visual_tokens == 1485
    assert capped.plan_image(4032, 3024).visual_tokens == 729 + 23 * 32


def test_a_video_or_picture_without_pixels_is_refused(tmp_path: Path) -> None:
    family = load_changed(tmp_path, ONEVISION)
    with pytest.raises(PlanRefused, match="video of 0 frames"):
        family.plan_video(0, 10, 10)
    with pytest.raises(PlanRefused, match="picture of 0x10 px"):
        family.plan_video(1, 0, 10)
    with pytest.raises(PlanRefused, match="picture of 10x0 px"):
        family.plan_image(10, 0, images_in_request=2)


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        ("config.json: vision_feature_select_strategy", "default", "known are full"),
        ("config.json: vision_aspect_ratio", "square", "anyres_max_ and a whole number above 0"),
        ("config.json: vision_aspect_ratio", "anyres_max_0", "anyres_max_ and a whole number above 0"),
        ("config.json: vision_aspect_ratio", "anyres_max_4", "caps at 9 tiles"),
        ("processor_config.json: num_image_tokens", 576, "729 patches"),
        ("processor_config.json: vision_feature_select_strategy", "default", "known are full"),
        ("preprocessor_config.json: size", {"height": 336, "width": 336}, "vision_config.image_size = 384"),
        ("preprocessor_config.json: crop_size", {"height": 336, "width": 336}, None),
        ("video_preprocessor_config.json: size", {"height": 336, "width": 336}, "vision_config.image_size = 384"),
    ],
)
def test_settings_that_would_be_counted_wrongly_are_refused_at_load(
    tmp_path: Path, place: str, value: object, words: str | None
) -> None:
    if words is None:  # the class crops only where it is told to
        assert load_changed(tmp_path, ONEVISION, {place: value}).plan_image(336, 336).visual_tokens == 1485
        return
    with pytest.raises(UnsupportedCheckpoint) as caught:
        load_changed(tmp_path, ONEVISION, {place: value})
    assert words in str(caught.value)
