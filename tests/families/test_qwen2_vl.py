from __future__ import annotations

from pathlib import Path

import pytest

from proteus.families.family import EncoderInput, MediaPlan, PlanRefused
from proteus.families.qwen2_vl import VIDEO_PIXELS, Qwen2Vl
from tests.families.published_folders import ABSENT
from tests.families.qwen_folders import family_of, picture_tokens


@pytest.mark.parametrize("name", ["Qwen2-VL-7B", "Qwen2.5-VL-7B"])
@pytest.mark.parametrize(
    ("height_px", "width_px", "tokens"),
    [
        (336, 336, 144),
        (480, 640, 391),
        (640, 480, 391),
        (1080, 1920, 2691),
        (3024, 4032, 15_552),
        (1, 1, 4),
        (10, 1000, 20),
        (1000, 10, 20),
        (100, 7000, 1000),
        (4000, 30, 143),
        (2, 500, None),
        (0, 500, None),
    ],
)
def test_tokens_are_those_of_the_processor(
    tmp_path: Path, name: str, height_px: int, width_px: int, tokens: int | None
) -> None:
    wanted = None if tokens is None else (tokens, tokens)
    assert picture_tokens(family_of(tmp_path, name), height_px, width_px) == wanted


@pytest.mark.parametrize("name", ["Qwen2-VL-7B", "Qwen2.5-VL-7B"])
@pytest.mark.parametrize(
    ("num_frames", "height_px", "width_px", "tokens"),
    [
        (4, 112, 112, 288),
        (8, 240, 320, 560),
        (9, 240, 320, 700),
        (16, 480, 640, 3128),
        (1, 64, 64, 144),
        (3, 20, 4000, 286),
    ],
)
def test_clips_take_the_defaults_of_the_video_processor(
    tmp_path: Path, name: str, num_frames: int, height_px: int, width_px: int, tokens: int
) -> None:
    size = {"shortest_edge": VIDEO_PIXELS.min_pixels, "longest_edge": VIDEO_PIXELS.max_pixels}
    family = family_of(tmp_path, name, {"video_preprocessor_config.json: size": size})
    assert family.plan_video(num_frames, width_px, height_px).visual_tokens == tokens


def test_a_folder_without_video_settings_uses_those_of_its_pictures(tmp_path: Path) -> None:
    assert family_of(tmp_path, "Qwen2-VL-7B").plan_video(4, 112, 112).visual_tokens == 32


def test_plan_of_a_vga_picture(tmp_path: Path) -> None:
    assert family_of(tmp_path, "Qwen2-VL-7B").plan_image(640, 480) == MediaPlan(
        modality="image",
        visual_tokens=391,
        wrapper_tokens=0,
        encoder_input=EncoderInput(kind="grid", count=1, rows=34, cols=46),
        patches=1564,
        encoder_flops=2_408_293_744_640,
        decode_bytes=921_600,
        self_kv_bytes=391 * 2 * 28 * 4 * 128 * 2,
    )


@pytest.mark.parametrize(("num_frames", "side_px"), [(0, 64), (4, 0), (-1, 64)])
def test_a_clip_of_nothing_is_refused(tmp_path: Path, num_frames: int, side_px: int) -> None:
    with pytest.raises(PlanRefused):
        family_of(tmp_path, "Qwen2-VL-7B").plan_video(num_frames, side_px, 64)


def test_absent_keys_take_transformers_defaults(tmp_path: Path) -> None:
    keys = ("depth", "embed_dim", "mlp_ratio", "patch_size", "spatial_merge_size", "temporal_patch_size", "hidden_size")
    published = family_of(tmp_path, "Qwen2-VL-7B")
    changes = {f"config.json: vision_config.{key}": ABSENT for key in keys}
    assert family_of(tmp_path, "Qwen2-VL-7B", changes) == published


def test_text_settings_may_stand_in_a_table_of_their_own(tmp_path: Path) -> None:
    text = {"hidden_size": 1536, "num_attention_heads": 12, "num_key_value_heads": 2, "num_hidden_layers": 28}
    family = family_of(tmp_path, "Qwen2-VL-7B", {"config.json: text_config": {**text, "model_type": "qwen2_vl"}})
    assert isinstance(family, Qwen2Vl)
    assert (family.language.kv_heads, family.language.head_dim, family.language.context_tokens) == (2, 128, 32_768)
