from __future__ import annotations

from pathlib import Path

import pytest

from proteus.families.checkpoint import UnsupportedCheckpoint
from proteus.families.family import EncoderInput, MediaPlan, PlanRefused
from tests.families.published_folders import ABSENT, load_changed, picture_tokens
from tests.families.published_llava import PUBLISHED
from tests.families.test_llava_next import CLIP_LAYER, SIZES

VIDEO = PUBLISHED["LLaVA-NeXT-Video-7B"]
SIDE_224 = {
    "config.json: vision_config.image_size": 224,
    "config.json: image_grid_pinpoints": [[224, 448], [448, 224]],
    "preprocessor_config.json: image_grid_pinpoints": [[224, 448], [448, 224]],
    "preprocessor_config.json: size": {"shortest_edge": 224},
    "preprocessor_config.json: crop_size": {"height": 224, "width": 224},
    "video_preprocessor_config.json": {},
}


def test_pictures_take_the_tokens_of_llava_next(tmp_path: Path) -> None:
    assert picture_tokens(load_changed(tmp_path, VIDEO), SIZES) == SIZES


@pytest.mark.parametrize(
    ("num_frames", "height_px", "width_px", "tokens"),
    [
        (4, 112, 112, 256),
        (8, 240, 320, 512),
        (9, 240, 320, 576),
        (16, 480, 640, 1024),
        (1, 64, 64, 64),
        (3, 20, 4000, 192),
    ],
)
def test_frames_take_a_quarter_of_their_patches(
    tmp_path: Path, num_frames: int, height_px: int, width_px: int, tokens: int
) -> None:
    family = load_changed(tmp_path, VIDEO, SIDE_224)
    assert family.plan_video(num_frames, width_px, height_px).visual_tokens == tokens


def test_plan_holds_every_cost_of_a_video(tmp_path: Path) -> None:
    tower = 2 * 576 * 588 * 1024 + 23 * CLIP_LAYER
    assert load_changed(tmp_path, VIDEO).plan_video(8, 640, 360) == MediaPlan(
        modality="video",
        visual_tokens=8 * 144,
        wrapper_tokens=0,
        encoder_input=EncoderInput(kind="tiles", count=8, rows=336, cols=336),
        patches=8 * 576,
        encoder_flops=8 * (tower + 2 * 144 * (1024 * 4096 + 4096**2)),
        decode_bytes=8 * 3 * 640 * 360,
        self_kv_bytes=2 * 32 * 8 * 144 * 32 * 128 * 2,
    )


def test_older_folders_keep_the_settings_of_videos_with_those_of_pictures(tmp_path: Path) -> None:
    family = load_changed(tmp_path, VIDEO, {"video_preprocessor_config.json": ABSENT})
    assert family.plan_video(1, 10, 10).visual_tokens == 144


def test_a_video_without_frames_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanRefused, match="video of 0 frames"):
        load_changed(tmp_path, VIDEO).plan_video(0, 640, 360)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"config.json: spatial_pool_mode": "conv"}, "spatial_pool_mode = 'conv'"),
        ({"config.json: spatial_pool_stride": 3}, "a quarter of 576 patches"),
        ({"video_preprocessor_config.json: size": {"shortest_edge": 224}}, "vision_config.image_size = 336"),
    ],
)
def test_videos_that_would_be_counted_wrongly_are_refused_at_load(
    tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    with pytest.raises(UnsupportedCheckpoint) as caught:
        load_changed(tmp_path, VIDEO, changes)
    assert words in str(caught.value)
