from __future__ import annotations

from pathlib import Path

import pytest

from proteus.families.checkpoint import UnsupportedCheckpoint
from proteus.families.family import EncoderInput, MediaPlan, PlanRefused
from tests.families.published_folders import ABSENT, load_changed, picture_tokens
from tests.families.published_llava import PUBLISHED

MISTRAL = PUBLISHED["LLaVA-NeXT-Mistral-7B"]
SIZES = {
    (336, 336): 1176,
    (480, 640): 2340,
    (640, 480): 2352,
    (1080, 1920): 1948,
    (3024, 4032): 2340,
    (1, 1): 1176,
    (10, 1000): 576,
    (1000, 10): 648,
    (100, 7000): 722,
    (4000, 30): 648,
    (2, 500): 576,
    (184, 161): 1128,  # once counted as 1080
}
CLIP_LAYER = 2 * 577 * (4 * 1024**2 + 2 * 1024 * 4096) + 4 * 577**2 * 1024
TILE_FLOPS = 2 * 576 * 588 * 1024 + 23 * CLIP_LAYER + 2 * 576 * (1024 * 4096 + 4096**2)


def test_tokens_are_those_of_the_processor(tmp_path: Path) -> None:
    assert picture_tokens(load_changed(tmp_path, MISTRAL), SIZES) == SIZES


def test_plan_holds_every_cost_of_a_picture(tmp_path: Path) -> None:
    assert load_changed(tmp_path, MISTRAL).plan_image(1920, 1080) == MediaPlan(
        modality="image",
        visual_tokens=1948,
        wrapper_tokens=0,
        encoder_input=EncoderInput(kind="tiles", count=5, rows=336, cols=336),
        patches=5 * 576,
        encoder_flops=5 * TILE_FLOPS,
        decode_bytes=3 * 1920 * 1080,
        self_kv_bytes=2 * 32 * 1948 * 8 * 128 * 2,
    )


def test_without_settings_the_pinpoints_are_those_of_the_classes(tmp_path: Path) -> None:
    absent = {
        "config.json: image_grid_pinpoints": ABSENT,
        "preprocessor_config.json: image_grid_pinpoints": ABSENT,
        "processor_config.json": ABSENT,
        "config.json: vision_config": ABSENT,
    }
    assert picture_tokens(load_changed(tmp_path, MISTRAL, absent), SIZES) == SIZES


@pytest.mark.parametrize(("width_px", "height_px"), [(0, 10), (10, 0), (-1, 5)])
def test_a_picture_without_pixels_is_refused(tmp_path: Path, width_px: int, height_px: int) -> None:
    with pytest.raises(PlanRefused, match="1 px or more"):
        load_changed(tmp_path, MISTRAL).plan_image(width_px, height_px)


def test_it_reads_no_video_and_no_audio(tmp_path: Path) -> None:
    family = load_changed(tmp_path, MISTRAL)
    with pytest.raises(PlanRefused, match="LLaVA-NeXT reads no video"):
        family.plan_video(1, 10, 10)
    with pytest.raises(PlanRefused, match="LLaVA-NeXT reads no audio"):
        family.plan_audio(100)


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        ("config.json: vision_feature_select_strategy", "full", "vision_feature_select_strategy = 'full'"),
        ("config.json: vision_feature_layer", -26, "indices from -25 to 24"),
        ("config.json: vision_feature_layer", [], "vision_feature_layer = []"),
        ("config.json: vision_config.model_type", "siglip_vision_model", "known are clip_vision_model"),
        ("config.json: vision_config.image_size", 448, "vision_config.image_size = 448"),
        ("config.json: image_grid_pinpoints", [[336, 336]], "those of"),
        ("config.json: image_grid_pinpoints", [[336, 500]], "multiples of 336"),
        ("config.json: image_grid_pinpoints", 336, "multiples of 336"),
        ("config.json: image_grid_pinpoints", [], "multiples of 336"),
        ("preprocessor_config.json: size", {"shortest_edge": 224}, "size = {'shortest_edge': 224}"),
        ("preprocessor_config.json: size", {"height": 224, "width": 224}, "vision_config.image_size = 336"),
        ("preprocessor_config.json: crop_size", {"height": 224, "width": 224}, "crop_size"),
        ("preprocessor_config.json: crop_size", ABSENT, "crop_size = 224"),
        ("preprocessor_config.json", ABSENT, "preprocessor_config.json is missing"),
        ("processor_config.json: num_additional_image_tokens", ABSENT, "make 575 placeholders"),
        ("processor_config.json: vision_feature_select_strategy", "full", "make 577 placeholders"),
        ("processor_config.json: patch_size", 28, "make 144 placeholders"),
    ],
)
def test_settings_that_would_be_counted_wrongly_are_refused_at_load(
    tmp_path: Path, place: str, value: object, words: str
) -> None:
    with pytest.raises(UnsupportedCheckpoint) as caught:
        load_changed(tmp_path, MISTRAL, {place: value})
    assert words in str(caught.value)


def test_a_processor_that_does_not_crop_is_read(tmp_path: Path) -> None:
    changes = {"preprocessor_config.json: do_center_crop": False, "preprocessor_config.json: crop_size": 1}
    assert picture_tokens(load_changed(tmp_path, MISTRAL, changes), SIZES) == SIZES
