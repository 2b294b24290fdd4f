from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from proteus.families.checkpoint import UnsupportedCheckpoint
from proteus.families.family import EncoderInput, MediaPlan, PlanRefused
from tests.families.qwen_folders import ABSENT, family_of, picture_tokens

NAME = "Phi-4-multimodal-instruct"
IMAGES = "preprocessor_config.json:"
SOUND = "config.json:audio_config."


@pytest.mark.parametrize(
    ("height_px", "width_px", "tokens"),
    [
        (336, 336, 545),
        (480, 640, 1065),
        (640, 480, 1073),
        (1080, 1920, 3918),
        (3024, 4032, 3393),
        (1, 1, 545),
        (10, 1000, 322),
        (1000, 10, 369),
        (100, 7000, 1301),
        (4000, 30, 705),
    ],
)
def test_tokens_are_those_of_the_processor(tmp_path: Path, height_px: int, width_px: int, tokens: int) -> None:
    assert picture_tokens(family_of(tmp_path, NAME), height_px, width_px) == (tokens, tokens)


@pytest.mark.parametrize(("width_px", "height_px", "scaled"), [(500, 2, "896x3"), (2, 500, "3x896")])
def test_thin_pictures_are_refused_with_the_limit(tmp_path: Path, width_px: int, height_px: int, scaled: str) -> None:
    with pytest.raises(PlanRefused, match=f"too thin: {scaled} px when scaled; limit: sides of 10 px"):
        family_of(tmp_path, NAME).plan_image(width_px, height_px)


def test_a_picture_without_pixels_is_refused(tmp_path: Path) -> None:
    assert picture_tokens(family_of(tmp_path, NAME), 0, 500) is None


def test_plan_of_a_vga_picture(tmp_path: Path) -> None:
    layers = 26 * (2 * 1024 * (4 * 1152**2 + 2 * 1152 * 4304) + 4 * 1024**2 * 1152)  # of 27: the last is not read
    assert family_of(tmp_path, NAME).plan_image(640, 480) == MediaPlan(
        modality="image",
        visual_tokens=1065,
        wrapper_tokens=0,
        encoder_input=EncoderInput(kind="tiles", count=5, rows=448, cols=448),
        patches=5120,
        encoder_flops=5 * (2 * 1024 * 588 * 1152 + layers) + 2 * 1065 * (1152 * 3072 + 3072**2),
        decode_bytes=921_600,
        self_kv_bytes=1065 * 2 * 32 * 8 * 128 * 2,
    )


def test_more_tiles_than_the_most_become_the_grid_nearest_to_the_ratio(tmp_path: Path) -> None:
    family = family_of(tmp_path, NAME, {f"{IMAGES}dynamic_hd": 6})
    assert family.plan_image(3000, 2000).encoder_input.count == 1 + 3 * 2


@pytest.mark.parametrize(
    ("seconds", "tokens"), [(0.025, 1), (0.1, 1), (1, 13), (5.3, 66), (31, 388)], ids=lambda value: str(value)
)
def test_audio_tokens_are_those_of_the_processor(tmp_path: Path, seconds: float, tokens: int) -> None:
    plan = family_of(tmp_path, NAME).plan_audio(round(seconds * 16_000))
    assert (plan.visual_tokens, plan.wrapper_tokens, plan.modality) == (tokens, 0, "audio")


def test_plan_of_a_second_of_audio(tmp_path: Path) -> None:
    family = family_of(tmp_path, NAME)
    convolutions = 49 * 40 * 9 * 1024 + 25 * 20 * (9 * 1024 + 1024**2) + 13 * 10 * (9 * 1024 + 1024**2)
    convolutions += 13 * 10 * 1024 * 1024
    feed_forward = 2 * 13 * 3 * 1024 * 1536
    attention = 4 * 13 * 1024**2 + 2 * 13 * 13 * 1024
    convolution = 13 * 2 * 1024**2 + 15 * (3 * 1024 + 1024**2) + 13 * 1024**2
    blocks = 24 * (feed_forward + attention + convolution)
    assert family.sample_rate_hz == 16_000
    assert family.plan_audio(16_000) == MediaPlan(
        modality="audio",
        visual_tokens=13,
        wrapper_tokens=0,
        encoder_input=EncoderInput(kind="mel", count=1, rows=80, cols=98),
        patches=13,
        encoder_flops=2 * (convolutions + blocks + 13 * (1024 * 3072 + 3072**2)),
        decode_bytes=64_000,
        self_kv_bytes=13 * 2 * 32 * 8 * 128 * 2,
    )


def test_long_audio_is_encoded_in_pieces_of_500_rows(tmp_path: Path) -> None:
    family = family_of(tmp_path, NAME)
    assert [family.plan_audio(400 + 160 * (8 * rows - 1)).patches for rows in (500, 501)] == [500, 1000]


def test_audio_shorter_than_a_window_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanRefused, match="audio of 399 samples; limit: one window of 400"):
        family_of(tmp_path, NAME).plan_audio(399)


def test_video_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanRefused, match="reads no video; limit: it reads image, audio"):
        family_of(tmp_path, NAME).plan_video(8, 64, 64)


def test_absent_keys_take_the_defaults_of_transformers(tmp_path: Path) -> None:
    absent = {SOUND[:-1]: ABSENT, "config.json:vision_config": ABSENT, f"{IMAGES}dynamic_hd": ABSENT}
    absent |= {f"{IMAGES}audio_compression_rate": ABSENT, f"{IMAGES}feature_extractor_type": ABSENT}
    assert family_of(tmp_path, NAME, absent) == family_of(tmp_path, NAME)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (f"{IMAGES}size", {"height": 336, "width": 336}, "448 px"),
        (f"{IMAGES}patch_size", 16, "patch_size"),
        (f"{IMAGES}dynamic_hd", 0, "dynamic_hd"),
        (f"{IMAGES}image_processor_type", "CLIPImageProcessor", "image_processor_type"),
        (f"{IMAGES}feature_extractor_type", "WhisperFeatureExtractor", "feature_extractor_type"),
        (f"{IMAGES}audio_compression_rate", 4, "audio_compression_rate"),
        (f"{IMAGES}audio_downsample_rate", 2, "audio_downsample_rate"),
        (f"{IMAGES}audio_feat_stride", 2, "audio_feat_stride"),
        (f"{IMAGES}feature_size", 128, "feature_size"),
        ("config.json:vision_config.crop_size", 336, "crop_size"),
        ("config.json:vision_config.image_size", 336, "image_size"),
        ("config.json:vision_config.patch_size", 16, "patch_size"),
        ("config.json:vision_config.feature_layer", 3, "a layer counted from the last"),
        ("config.json:vision_config.feature_layer", -28, "a layer counted from the last"),
        (f"{SOUND}time_reduction", 6, "time_reduction"),
        (f"{SOUND}downsample_rate", 2, "downsample_rate"),
    ],
)
def test_settings_that_cannot_be_served_are_refused_by_name(tmp_path: Path, key: str, value: Any, said: str) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=said):
        family_of(tmp_path, NAME, {key: value})
