from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proteus.families.tile_grid import grids, nearest_grid


@pytest.mark.parametrize(
    ("width_px", "height_px", "most", "grid"),
    [
        (448, 448, 12, (1, 1)),  # a large enough picture takes the larger of the grids of its ratio
        (1000, 1000, 12, (3, 3)),
        (640, 480, 12, (4, 3)),
        (4000, 30, 12, (12, 1)),
        (30, 4000, 12, (1, 12)),
        (150, 100, 2, (1, 1)),  # as near to 1 as to 2, and no more than half of two tiles
        (1500, 1000, 2, (2, 1)),
    ],
)
def test_the_grid_nearest_to_the_ratio_wins(width_px: int, height_px: int, most: int, grid: tuple[int, int]) -> None:
    assert nearest_grid(width_px, height_px, 448, min_tiles=1, max_tiles=most) == grid


def test_there_is_one_tile_when_no_grid_fits() -> None:
    assert nearest_grid(10, 10, 448, min_tiles=5, max_tiles=4) == (1, 1)


@given(width_px=st.integers(1, 30_000), height_px=st.integers(1, 30_000), most=st.integers(1, 36))
def test_the_number_of_tiles_stays_within_the_most(width_px: int, height_px: int, most: int) -> None:
    cols, rows = nearest_grid(width_px, height_px, 448, min_tiles=1, max_tiles=most)
    assert 1 <= cols * rows <= most


@pytest.mark.parametrize("most", range(1, 37))
def test_the_order_of_grids_of_as_many_tiles_never_matters(most: int) -> None:
    """Phi-4's own order is that of a set: a ratio halfway between two such grids always has a nearer one."""
    every = grids(1, most)
    for one, other in combinations(every, 2):
        if one[0] * one[1] == other[0] * other[1]:
            low, high = sorted((one[0] / one[1], other[0] / other[1]))
            assert any(abs(cols / rows - (low + high) / 2) < (high - low) / 2 - 1e-9 for cols, rows in every)
