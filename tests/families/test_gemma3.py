from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proteus.families.checkpoint import UnsupportedCheckpoint
from proteus.families.family import EncoderInput, MediaPlan, PlanRefused
from proteus.families.gemma3 import PanAndScan
from tests.families.published_folders import ABSENT, load_changed, picture_tokens
from tests.families.published_llava import PUBLISHED

GEMMA3 = PUBLISHED["Gemma-3-4B"]
WITH_CROPS = PUBLISHED["Gemma-3-4B with pan & scan"]
SIZES = {
    (336, 336): 256,
    (480, 640): 768,
    (640, 480): 768,
    (1080, 1920): 768,
    (3024, 4032): 768,
    (1, 1): 256,
    (10, 1000): 256,
    (1000, 10): 256,
    (100, 7000): 256,
    (4000, 30): 256,
    (2, 500): 256,
    (600, 1500): 1024,
    (600, 20_000): 1280,
}
LAYER = 2 * 4096 * (4 * 1152**2 + 2 * 1152 * 4304) + 4 * 4096**2 * 1152
SQUARE_FLOPS = 2 * 4096 * 588 * 1152 + 27 * LAYER + 2 * 256 * 1152 * 2560


def test_a_picture_is_one_square_without_pan_and_scan(tmp_path: Path) -> None:
    family = load_changed(tmp_path, GEMMA3)
    assert picture_tokens(family, SIZES) == dict.fromkeys(SIZES, 256)
    assert family.plan_image(1920, 1080).wrapper_tokens == 4


def test_tokens_are_those_of_the_processor_with_pan_and_scan(tmp_path: Path) -> None:
    assert picture_tokens(load_changed(tmp_path, WITH_CROPS), SIZES) == SIZES


def test_plan_holds_every_cost_of_a_picture(tmp_path: Path) -> None:
    wrapper = 3 * 4 + 6 + 11 + 1  # around each square, two sentences, between two crops
    assert load_changed(tmp_path, WITH_CROPS).plan_image(1920, 1080) == MediaPlan(
        modality="image",
        visual_tokens=768,
        wrapper_tokens=wrapper,
        encoder_input=EncoderInput(kind="tiles", count=3, rows=896, cols=896),
        patches=3 * 4096,
        encoder_flops=3 * SQUARE_FLOPS,
        decode_bytes=3 * 1920 * 1080,
        self_kv_bytes=2 * 34 * (768 + wrapper) * 4 * 256 * 2,
    )


@given(st.integers(1, 20_000), st.integers(1, 20_000))
def test_a_turned_picture_has_as_many_crops(width_px: int, height_px: int) -> None:
    rule = PanAndScan(min_crop_px=256, max_crops=4, min_ratio=1.2)
    crops = rule.crops(width_px, height_px)
    assert crops == rule.crops(height_px, width_px)
    assert crops in (0, 2, 3, 4)


@pytest.mark.parametrize(
    ("width_px", "height_px", "crops"),
    [(1199, 1000, 0), (1200, 1000, 2), (2499, 1000, 2), (2500, 1000, 3), (511, 256, 2), (510, 256, 0), (600, 255, 0)],
)
def test_crops_begin_at_ratio_and_size(width_px: int, height_px: int, crops: int) -> None:
    assert PanAndScan(min_crop_px=256, max_crops=4, min_ratio=1.2).crops(width_px, height_px) == crops


def test_pan_and_scan_takes_the_settings_of_the_folder(tmp_path: Path) -> None:
    settings = {"min_crop_size": 64, "max_num_crops": 8, "min_ratio_to_activate": 2}
    changes = {f"preprocessor_config.json: pan_and_scan_{key}": value for key, value in settings.items()}
    family = load_changed(tmp_path, WITH_CROPS, changes)
    tokens = [family.plan_image(width_px, 100).visual_tokens for width_px in (199, 200, 800, 8000)]
    assert tokens == [256, 768, 9 * 256, 9 * 256]


def test_a_picture_without_pixels_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanRefused, match="picture of 9x0 px"):
        load_changed(tmp_path, WITH_CROPS).plan_image(9, 0)


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        ("config.json: mm_tokens_per_image", 200, "a square that 64 x 64 patches are pooled to"),
        ("config.json: mm_tokens_per_image", 121, "a square that 64 x 64 patches are pooled to"),
        ("config.json: mm_tokens_per_image", 65**2, "a square that 64 x 64 patches are pooled to"),
        ("config.json: mm_tokens_per_image", 64, "mm_tokens_per_image = 64"),
        ("config.json: vision_config", ABSENT, "vision_config.image_size = 224"),
        ("processor_config.json: image_seq_length", 64, "image_seq_length = 64"),
        ("preprocessor_config.json: size", {"height": 448, "width": 448}, "vision_config.image_size = 896"),
        ("preprocessor_config.json: do_pan_and_scan", "yes", "do_pan_and_scan = 'yes'"),
        ("preprocessor_config.json: pan_and_scan_min_crop_size", 3, "pan_and_scan_min_crop_size = 3"),
        ("preprocessor_config.json: pan_and_scan_min_ratio_to_activate", "wide", "a number"),
    ],
)
def test_settings_that_would_be_counted_wrongly_are_refused_at_load(
    tmp_path: Path, place: str, value: object, words: str
) -> None:
    with pytest.raises(UnsupportedCheckpoint) as caught:
        load_changed(tmp_path, WITH_CROPS, {place: value})
    assert words in str(caught.value)
