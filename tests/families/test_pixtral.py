from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proteus.families.checkpoint import UnsupportedCheckpoint
from proteus.families.family import EncoderInput, MediaPlan, PlanRefused
from proteus.families.pixtral import Pixtral, token_grid
from tests.families.published_folders import ABSENT
from tests.families.qwen_folders import family_of, picture_tokens

CONFIG, IMAGES, PROCESSOR = "config.json: ", "preprocessor_config.json: ", "processor_config.json: "


@pytest.mark.parametrize(
    ("height_px", "width_px", "tokens"),
    [
        (336, 336, (441, 462)),
        (480, 640, (1200, 1230)),
        (640, 480, (1200, 1240)),
        (1080, 1920, (2304, 2340)),
        (3024, 4032, (3072, 3120)),
        (1, 1, (1, 2)),
        (10, 1000, (63, 64)),
        (1000, 10, (63, 126)),
        (100, 7000, (64, 65)),
        (4000, 30, (64, 128)),
        (2, 500, (32, 33)),
        (1, 1025, None),
        (0, 9, None),
    ],
)
def test_tokens_are_those_of_the_processor(
    tmp_path: Path, height_px: int, width_px: int, tokens: tuple[int, int] | None
) -> None:
    assert picture_tokens(family_of(tmp_path, "pixtral-12b"), height_px, width_px) == tokens


def test_plan_of_a_vga_picture(tmp_path: Path) -> None:
    layers = 24 * (2 * 1200 * (4 * 1024**2 + 3 * 1024 * 4096) + 4 * 1200**2 * 1024)
    connector = 2 * 1200 * (1024 * 5120 + 5120**2)
    assert family_of(tmp_path, "pixtral-12b").plan_image(640, 480) == MediaPlan(
        modality="image",
        visual_tokens=1200,
        wrapper_tokens=30,
        encoder_input=EncoderInput(kind="grid", count=1, rows=30, cols=40),
        patches=1200,
        encoder_flops=2 * 1200 * 768 * 1024 + layers + connector,
        decode_bytes=921_600,
        self_kv_bytes=1230 * 2 * 40 * 8 * 128 * 2,
    )


def test_a_side_that_shrinks_to_nothing_is_refused_with_the_limit() -> None:
    with pytest.raises(
        PlanRefused, match="1025x1 px: the shorter side shrinks to nothing; limit: longest side of 1024"
    ):
        token_grid(1025, 1, longest_edge_px=1024, cell_px=16)


@settings(deadline=None)
@given(st.integers(1, 20_000), st.integers(1, 20_000))
def test_a_grid_never_exceeds_the_longest_edge_and_turns_with_the_picture(width: int, height: int) -> None:
    try:
        cols, rows = token_grid(width, height, longest_edge_px=1024, cell_px=16)
    except PlanRefused:
        assert max(width, height) > 1024 * min(width, height)
        return
    assert 1 <= min(cols, rows)
    assert max(cols, rows) <= 64
    assert token_grid(height, width, longest_edge_px=1024, cell_px=16) == (rows, cols)


def test_a_llava_checkpoint_with_pixtrals_tower_is_pixtral(tmp_path: Path) -> None:
    assert isinstance(family_of(tmp_path, "pixtral-12b"), Pixtral)


def test_absent_keys_take_transformers_defaults(tmp_path: Path) -> None:
    published = family_of(tmp_path, "pixtral-12b")
    keys = (IMAGES + "size", PROCESSOR + "patch_size", CONFIG + "vision_config.patch_size")
    assert family_of(tmp_path, "pixtral-12b", dict.fromkeys(keys, ABSENT)) == published


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({PROCESSOR + "patch_size": 14}, "processor_config.json: patch_size = 14; limit: the model's 16"),
        ({PROCESSOR + "spatial_merge_size": 2}, "spatial_merge_size = 2; limit: the model's 1"),
        ({CONFIG + "vision_feature_layer": ABSENT}, "vision_feature_layer = -2"),
        ({CONFIG + "vision_feature_select_strategy": "default"}, "vision_feature_select_strategy = 'default'"),
        ({IMAGES + "size": {"height": 1024, "width": 1024}}, "size.longest_edge = None"),
        ({IMAGES + "do_center_crop": True}, "do_center_crop = True"),
        ({IMAGES + "do_resize": False}, "do_resize = False"),
        ({IMAGES + "image_processor_type": "CLIPImageProcessor"}, "image_processor_type = 'CLIPImageProcessor'"),
    ],
)
def test_settings_of_another_rule_are_refused_at_load(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    with pytest.raises(UnsupportedCheckpoint) as caught:
        family_of(tmp_path, "pixtral-12b", changes)
    assert words in str(caught.value)
