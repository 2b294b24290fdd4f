"""Which grid of tiles a picture is cut into by the families that match its aspect ratio: InternVL, Phi-4-multimodal.

The rule is InternVL 1.5's dynamic resolution (arXiv 2404.16821 §3.3): the grid of at most `max_tiles` tiles whose ratio
of sides is nearest to the picture's.
"""

from __future__ import annotations

from functools import lru_cache

Grid = tuple[int, int]  # columns, rows
MAX_TILES = 1024  # of one picture; every grid of them is listed


@lru_cache(maxsize=64)
def grids(min_tiles: int, max_tiles: int) -> tuple[Grid, ...]:
    """Every grid of `min_tiles` to `max_tiles` tiles, those of fewer tiles first."""
    sides = range(1, max_tiles + 1)
    fitting = [(cols, rows) for cols in sides for rows in sides if min_tiles <= cols * rows <= max_tiles]
    return tuple(sorted(fitting, key=lambda grid: grid[0] * grid[1]))


def nearest_grid(width_px: int, height_px: int, tile_px: int, *, min_tiles: int, max_tiles: int) -> Grid:
    """The grid for a picture; (1, 1) when none has a fitting number of tiles.

    Of grids that are equally near, a later and larger one wins only if the picture has more than half its pixels.
    """
    ratio, pixels = width_px / height_px, width_px * height_px
    best, least = (1, 1), float("inf")
    for cols, rows in grids(min_tiles, max_tiles):
        distance = abs(ratio - cols / rows)
        if distance < least or (distance == least and pixels > 0.5 * tile_px * tile_px * cols * rows):
            best, least = (cols, rows), distance
    return best
