from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proteus.families.checkpoint import UnsupportedCheckpoint
from proteus.families.qwen2_5_vl import squares
from tests.families.published_folders import ABSENT
from tests.families.qwen_folders import family_of

VISION = "config.json: vision_config."


@settings(deadline=None)
@given(st.integers(1, 200), st.integers(1, 20))
def test_pieces_of_a_side_are_counted_one_by_one(length: int, window: int) -> None:
    pieces = [min(window, length - start) for start in range(0, length, window)]
    assert squares(length, window) == sum(piece**2 for piece in pieces)


def test_a_picture_of_one_window_costs_as_much_with_windows_as_without(tmp_path: Path) -> None:
    windowed = family_of(tmp_path, "Qwen2.5-VL-7B", {VISION + "fullatt_block_indexes": []})
    full = family_of(tmp_path, "Qwen2.5-VL-7B", {VISION + "fullatt_block_indexes": list(range(32))})
    assert windowed.plan_image(112, 112).encoder_flops == full.plan_image(112, 112).encoder_flops
    assert windowed.plan_image(140, 112).encoder_flops < full.plan_image(140, 112).encoder_flops


def test_layers_beyond_the_tower_are_not_counted(tmp_path: Path) -> None:
    published = family_of(tmp_path, "Qwen2.5-VL-7B")
    assert family_of(tmp_path, "Qwen2.5-VL-7B", {VISION + "fullatt_block_indexes": [7, 15, 23, 31, 99]}) == published
    assert family_of(tmp_path, "Qwen2.5-VL-7B", {VISION + "fullatt_block_indexes": ABSENT}) == published


def test_operations_of_a_vga_picture(tmp_path: Path) -> None:
    assert family_of(tmp_path, "Qwen2.5-VL-7B").plan_image(640, 480).encoder_flops == 2_073_453_281_280


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({VISION + "window_size": 27}, "vision_config.window_size = 27; limit: 28 px at least"),
        ({VISION + "fullatt_block_indexes": 7}, "vision_config.fullatt_block_indexes = 7; limit: a list"),
        ({VISION + "fullatt_block_indexes": [True]}, "a list of layer numbers"),
    ],
)
def test_windows_that_hold_no_token_are_refused_at_load(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    with pytest.raises(UnsupportedCheckpoint) as caught:
        family_of(tmp_path, "Qwen2.5-VL-7B", changes)
    assert words in str(caught.value)
