from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proteus.families.anyres import best_pinpoint, kept_features
from proteus.families.llava_next import PINPOINTS

SIDES = st.integers(1, 20_000)


@pytest.mark.parametrize(
    ("width_px", "height_px", "pinpoint"),
    [
        (1000, 1000, (672, 672)),
        (200, 200, (336, 672)),  # as many pixels are kept by all: the smallest wins, and the first of these
        (1920, 1080, (672, 672)),
        (4000, 1000, (336, 1008)),
        (1000, 4000, (1008, 336)),
        (20_000, 1, (336, 672)),  # nothing of it is kept: its height is rounded to no pixel
    ],
)
def test_pinpoint_keeps_most_pixels_then_wastes_the_fewest(
    width_px: int, height_px: int, pinpoint: tuple[int, int]
) -> None:
    assert best_pinpoint(width_px, height_px, PINPOINTS) == pinpoint


@pytest.mark.parametrize(
    ("width_px", "height_px", "kept"),
    [((640), 480, (36, 48)), (480, 640, (48, 36)), (161, 184, (48, 42)), (1000, 10, (0, 48)), (4944, 4429, (44, 48))],
)
def test_padding_is_cut_in_pairs_of_lines(width_px: int, height_px: int, kept: tuple[int, int]) -> None:
    features = kept_features(width_px, height_px, 48, 48)
    assert (features.rows, features.cols) == kept


@settings(max_examples=60)
@given(SIDES, SIDES, st.integers(1, 6), st.integers(1, 6))
def test_one_direction_is_kept_whole_and_no_feature_is_invented(
    width_px: int, height_px: int, rows: int, cols: int
) -> None:
    kept = kept_features(width_px, height_px, 24 * rows, 27 * cols)
    assert kept.rows == 24 * rows or kept.cols == 27 * cols
    assert 0 <= kept.rows <= 24 * rows
    assert 0 <= kept.cols <= 27 * cols
