from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proteus.families.checkpoint import UnsupportedCheckpoint
from proteus.families.family import PlanRefused
from proteus.families.qwen_grid import Grid, PatchRule, PixelRange, fit_sides
from tests.families.published_folders import ABSENT
from tests.families.qwen_folders import family_of

PIXELS = PixelRange(3136, 1_003_520)
SIDES = st.integers(1, 20_000)


def test_a_side_half_way_between_two_cells_goes_to_the_even_one() -> None:
    assert fit_sides(14 * 5, 14 * 7, cell_px=28, pixels=PIXELS) == (2 * 28, 4 * 28)


def test_small_pictures_grow_and_large_ones_shrink_into_the_range() -> None:
    assert fit_sides(1, 1, cell_px=28, pixels=PIXELS) == (56, 56)
    assert fit_sides(4000, 4000, cell_px=28, pixels=PIXELS) == (980, 980)


@pytest.mark.parametrize("size", [(201, 1), (1, 201), (4096, 18), (10_000, 1)])
def test_more_than_200_times_longer_than_wide_is_refused(size: tuple[int, int]) -> None:
    with pytest.raises(PlanRefused, match=r"times the other; limit: 200 times; fix: crop or pad it"):
        fit_sides(*size, cell_px=28, pixels=PIXELS)


def test_exactly_200_times_is_taken() -> None:
    assert fit_sides(4000, 20, cell_px=28, pixels=PIXELS) == (4004, 28)


@settings(max_examples=200, deadline=None)
@given(SIDES, SIDES)
def test_sides_are_whole_cells_in_the_range_up_to_a_cell_and_turn_with_the_picture(width: int, height: int) -> None:
    if max(width, height) > 200 * min(width, height):
        return
    fitted = fit_sides(width, height, cell_px=28, pixels=PIXELS)
    assert fitted[0] % 28 == fitted[1] % 28 == 0
    assert min(fitted) >= 28
    assert fitted[0] * fitted[1] >= PIXELS.min_pixels
    assert fitted[0] * fitted[1] <= PIXELS.max_pixels or min(fitted) == 28
    assert fit_sides(height, width, cell_px=28, pixels=PIXELS) == fitted[::-1]


@settings(deadline=None)
@given(st.integers(1, 99))
def test_the_last_frame_is_repeated_to_fill_its_patch(num_frames: int) -> None:
    rule = PatchRule(patch_px=14, merge=2, patch_frames=2)
    assert rule.grid(num_frames, 56, 28) == Grid(frames=(num_frames + 1) // 2, rows=2, cols=4)


IMAGES = "preprocessor_config.json: "
VISION = "config.json: vision_config."


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({VISION + "patch_size": 16}, ["preprocessor_config.json: patch_size = 14", "vision tower's 16"]),
        ({VISION + "spatial_merge_size": 3}, ["merge_size = 2", "vision tower's 3"]),
        ({VISION + "temporal_patch_size": 1}, ["temporal_patch_size = 2", "vision tower's 1"]),
        ({VISION + "patch_size": [14, 14]}, ["config.json: vision_config.patch_size = [14, 14]"]),
        ({VISION + "in_channels": 4}, ["vision_config.in_channels = 4"]),
        ({IMAGES + "do_resize": False}, ["do_resize = False"]),
        ({IMAGES + "image_processor_type": "CLIPImageProcessor"}, ["image_processor_type = 'CLIPImageProcessor'"]),
        ({IMAGES + "max_pixels": 0}, ["max_pixels = 0"]),
        ({IMAGES + "max_pixels": ABSENT, IMAGES + "size": {"shortest_edge": 9}}, ["size.longest_edge = None"]),
        ({IMAGES + "cap_pixels_per_frame": True}, ["cap_pixels_per_frame = True"]),
        ({IMAGES + "video_processor_type": "OtherVideoProcessor"}, ["video_processor_type = 'OtherVideoProcessor'"]),
        ({"video_preprocessor_config.json: patch_size": 16}, ["video_preprocessor_config.json: patch_size = 16"]),
        ({"config.json: use_sliding_window": True}, ["config.json: use_sliding_window = True"]),
        ({"preprocessor_config.json": ABSENT}, ["preprocessor_config.json is missing"]),
    ],
)
def test_settings_of_another_rule_are_refused_at_load(
    tmp_path: Path, changes: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(UnsupportedCheckpoint) as caught:
        family_of(tmp_path, "Qwen2-VL-7B", changes)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "tokens"),
    [
        ({}, 15_552),
        ({IMAGES + "max_pixels": 1_003_520}, 1230),
        ({IMAGES + "max_pixels": ABSENT, IMAGES + "min_pixels": ABSENT}, 1230),
        ({IMAGES + "size": {"shortest_edge": 3136, "longest_edge": 9}}, 15_552),
        (
            {
                IMAGES + "max_pixels": ABSENT,
                IMAGES + "min_pixels": ABSENT,
                IMAGES + "size": {"shortest_edge": 3136, "longest_edge": 1_003_520},
            },
            1230,
        ),
    ],
)
def test_pixel_range_is_read_from_either_key_and_the_named_pixels_win(
    tmp_path: Path, changes: dict[str, Any], tokens: int
) -> None:
    assert family_of(tmp_path, "Qwen2-VL-7B", changes).plan_image(4032, 3024).visual_tokens == tokens
