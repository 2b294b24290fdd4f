from __future__ import annotations

from pathlib import Path

import pytest

from proteus.families.checkpoint import UnsupportedCheckpoint
from proteus.families.family import PlanRefused
from proteus.families.qwen3_vl import VIDEO_PIXELS, Qwen3Vl, pair_times_s
from tests.families.published_folders import ABSENT
from tests.families.qwen_folders import family_of, picture_tokens

CLIPS = "video_preprocessor_config.json: "
DEFAULT_CLIPS = {CLIPS + "size": {"shortest_edge": VIDEO_PIXELS.min_pixels, "longest_edge": VIDEO_PIXELS.max_pixels}}


def qwen3(folder: Path, changes: dict[str, object] | None = None) -> Qwen3Vl:
    family = family_of(folder, "Qwen3-VL-8B", changes)
    assert isinstance(family, Qwen3Vl)
    return family


@pytest.mark.parametrize(
    ("height_px", "width_px", "tokens"),
    [
        (336, 336, 100),
        (480, 640, 300),
        (640, 480, 300),
        (1080, 1920, 2040),
        (3024, 4032, 11_844),
        (1, 1, 64),
        (10, 1000, 80),
        (1000, 10, 80),
        (100, 7000, 657),
        (4000, 30, 125),
        (2, 500, None),
    ],
)
def test_tokens_are_those_of_the_processor(tmp_path: Path, height_px: int, width_px: int, tokens: int | None) -> None:
    wanted = None if tokens is None else (tokens, tokens)
    assert picture_tokens(qwen3(tmp_path), height_px, width_px) == wanted


@pytest.mark.parametrize(
    ("num_frames", "height_px", "width_px", "tokens", "wrapper_tokens"),
    [
        (4, 112, 112, 72, 16),
        (8, 240, 320, 320, 32),
        (9, 240, 320, 400, 40),
        (16, 480, 640, 384, 64),
        (3, 20, 4000, 452, 16),
    ],
)
def test_the_pixels_of_a_clip_are_bounded_as_a_whole(
    tmp_path: Path, num_frames: int, height_px: int, width_px: int, tokens: int, wrapper_tokens: int
) -> None:
    plan = qwen3(tmp_path, DEFAULT_CLIPS).plan_video(num_frames, width_px, height_px)
    assert (plan.visual_tokens, plan.wrapper_tokens) == (tokens, wrapper_tokens)


def test_the_time_of_a_frame_pair_costs_a_token_for_every_digit(tmp_path: Path) -> None:
    short = qwen3(tmp_path).plan_video(4, 64, 64, frames_per_s=1.0)  # at 0.5 s and 2.5 s
    assert short.wrapper_tokens == 2 * 8
    long = qwen3(tmp_path).plan_video(4, 64, 64, frames_per_s=0.02)  # at 25.0 s and 125.0 s
    assert long.wrapper_tokens == 9 + 10


def test_an_odd_last_frame_stands_for_its_pair() -> None:
    assert pair_times_s(3, 2.0, 2) == (0.25, 1.0)


@pytest.mark.parametrize(
    ("num_frames", "width_px", "height_px", "words"),
    [(1, 64, 64, "limit: 2 frames at least"), (4, 0, 64, "sides of 1 px"), (4, 20_000, 40, "limit: 200 times")],
)
def test_what_the_video_processor_raises_on_is_refused(
    tmp_path: Path, num_frames: int, width_px: int, height_px: int, words: str
) -> None:
    with pytest.raises(PlanRefused, match=words):
        qwen3(tmp_path).plan_video(num_frames, width_px, height_px)


def test_every_deepstack_layer_has_a_merger(tmp_path: Path) -> None:
    key = "config.json: vision_config.deepstack_visual_indexes"
    assert [qwen3(tmp_path, {key: layers}).tower.mergers for layers in ([], [8], [8, 26, 27], ABSENT)] == [1, 2, 3, 4]


@pytest.mark.parametrize("key", ["min_pixels", "max_pixels"])
def test_pixel_keys_that_the_video_processor_ignores_are_refused_at_load(tmp_path: Path, key: str) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=f"{key} = 9; limit: the edges of size"):
        qwen3(tmp_path, {CLIPS + key: 9})
