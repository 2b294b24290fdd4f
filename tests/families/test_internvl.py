from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from proteus.families.checkpoint import UnsupportedCheckpoint
from proteus.families.family import EncoderInput, MediaPlan
from tests.families.qwen_folders import ABSENT, family_of, picture_tokens

NAME = "InternVL3-8B-hf"
IMAGES = "preprocessor_config.json:"


@pytest.mark.parametrize(
    ("height_px", "width_px", "tokens"),
    [
        (336, 336, (256, 258)),
        (480, 640, (3328, 3330)),
        (640, 480, (3328, 3330)),
        (1080, 1920, (2304, 2306)),
        (3024, 4032, (3328, 3330)),
        (1, 1, (256, 258)),
        (10, 1000, (3328, 3330)),
        (1000, 10, (3328, 3330)),
        (100, 7000, (3328, 3330)),
        (4000, 30, (3328, 3330)),
        (2, 500, (3328, 3330)),
        (0, 9, None),
        (9, -1, None),
    ],
)
def test_tokens_are_those_of_the_processor(
    tmp_path: Path, height_px: int, width_px: int, tokens: tuple[int, int] | None
) -> None:
    assert picture_tokens(family_of(tmp_path, NAME), height_px, width_px) == tokens


def test_plan_of_a_picture_of_two_tiles_and_a_thumbnail(tmp_path: Path) -> None:
    family = family_of(tmp_path, NAME, {f"{IMAGES}max_patches": 2})
    layers = 24 * (2 * 1025 * (4 * 1024**2 + 2 * 1024 * 4096) + 4 * 1025**2 * 1024)
    assert family.plan_image(2000, 1000) == MediaPlan(
        modality="image",
        visual_tokens=3 * 256,
        wrapper_tokens=2,
        encoder_input=EncoderInput(kind="tiles", count=3, rows=448, cols=448),
        patches=3 * 1024,
        encoder_flops=3 * (2 * 1024 * 588 * 1024 + layers) + 2 * 768 * (4096 * 3584 + 3584**2),
        decode_bytes=6_000_000,
        self_kv_bytes=770 * 2 * 28 * 4 * 128 * 2,
    )


def test_one_tile_has_no_thumbnail(tmp_path: Path) -> None:
    family = family_of(tmp_path, NAME, {f"{IMAGES}max_patches": 1})
    assert family.plan_image(4000, 30).encoder_input.count == 1


def test_fewer_tiles_than_the_least_are_not_made(tmp_path: Path) -> None:
    family = family_of(tmp_path, NAME, {f"{IMAGES}min_patches": 3, f"{IMAGES}max_patches": 5})
    assert family.plan_image(100, 100).encoder_input.count == 5


@pytest.mark.parametrize("crop", [True, False, ABSENT])
def test_tiles_are_cut_whatever_the_image_processor_says(tmp_path: Path, crop: object) -> None:
    family = family_of(tmp_path, NAME, {f"{IMAGES}crop_to_patches": crop})
    assert family.plan_image(640, 480).encoder_input.count == 13


def test_absent_keys_take_the_defaults_of_transformers(tmp_path: Path) -> None:
    absent = {f"config.json:vision_config.{key}": ABSENT for key in ("hidden_size", "num_hidden_layers", "patch_size")}
    absent |= {f"{IMAGES}{key}": ABSENT for key in ("max_patches", "min_patches", "image_processor_type")}
    absent |= {"config.json:downsample_ratio": ABSENT, "processor_config.json": ABSENT}
    given = family_of(tmp_path, NAME)
    assert family_of(tmp_path, NAME, absent) == given


def test_both_layouts_of_processor_files_are_read(tmp_path: Path) -> None:
    given = family_of(tmp_path, NAME)
    settings = {"size": {"height": 448, "width": 448}, "max_patches": 12}
    changes = {"preprocessor_config.json": ABSENT, "processor_config.json:image_processor": settings}
    (tmp_path / "preprocessor_config.json").unlink()
    assert family_of(tmp_path, NAME, changes) == given


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("config.json:vision_feature_layer", -2, "vision_feature_layer"),
        ("config.json:vision_feature_select_strategy", "full", "vision_feature_select_strategy"),
        ("config.json:downsample_ratio", 0.3, "downsample_ratio"),
        ("config.json:vision_config.image_size", 224, "vision_config.image_size"),
        ("config.json:vision_config.patch_size", [14, 16], "square patches"),
        ("config.json:vision_config.num_channels", 1, "num_channels"),
        ("config.json:vision_config.patch_size", 16.5, "patch_size"),
        (f"{IMAGES}size", {"height": 448, "width": 224}, "equal sides"),
        (f"{IMAGES}max_patches", 0, "max_patches"),
        (f"{IMAGES}image_processor_type", "CLIPImageProcessor", "image_processor_type"),
        ("processor_config.json:image_seq_length", 64, "image_seq_length"),
    ],
)
def test_settings_that_cannot_be_served_are_refused_by_name(tmp_path: Path, key: str, value: Any, said: str) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=said):
        family_of(tmp_path, NAME, {key: value})


def test_patches_that_cannot_be_shuffled_are_refused(tmp_path: Path) -> None:
    changes = {"config.json:vision_config.image_size": 434, f"{IMAGES}size": {"height": 434, "width": 434}}
    with pytest.raises(UnsupportedCheckpoint, match="it divides 31 patches a side"):
        family_of(tmp_path, NAME, changes)
