"""What was asked how, and what came of it: shares of right answers with 95 % intervals, and what a request cost. Pure.

A way is how pictures are given; a cell is one way and one type of question. Within a cell answers are independent: the
intervals are Wilson's. Several types ask about the same scenes, so over all types whole scenes are drawn again.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from perf.draw_scores import Share, clustered, wilson

Caps = Literal["demo", "tight"]  # of the tiers: the demo's own, or some that are felt by small pictures
Detail = Literal["low", "auto", "high"]
View = Literal["whole", "around", "top left", "top right", "bottom left", "bottom right"]
MAX_PIXELS: Mapping[Caps, Mapping[str, int]] = {"demo": {}, "tight": {"low": 32 * 32, "auto": 64 * 64}}  # by tier
QUARTERS: tuple[View, ...] = ("top left", "top right", "bottom left", "bottom right")


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How a scene is given: pictures of `side_px` squared, one for each view."""

    caps: Caps = "demo"
    side_px: int
    format: Literal["png", "jpeg"] = "png"
    detail: Detail = "auto"
    views: tuple[View, ...] = ("whole",)

    @property
    def name(self) -> str:
        """Also that of a file."""
        views = "+".join(view.replace(" ", "_") for view in self.views)
        return f"{self.caps}-{self.side_px}-{self.format}-{self.detail}-{views}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One type of question, asked in one way: an entry of `right` and `seeds` for each question, in their order."""

    way: Way
    type: str
    right: tuple[bool, ...]
    seeds: tuple[int, ...]  # of the scenes; questions about the same scene hang together
    core_ms: tuple[float, ...]  # of a request, in each run
    visual_tokens: float  # of a request
    file_bytes: float  # of the pictures of a request

    @property
    def accuracy(self) -> Share:
        return wilson(sum(self.right), len(self.right))

    @property
    def cost(self) -> Share:
        return middle(self.core_ms)


@dataclass(frozen=True, slots=True)
class Row:
    """All cells of one way."""

    way: Way
    cells: tuple[Cell, ...]

    @property
    def accuracy(self) -> Share:
        """Over all questions, each type as often."""
        right, number = Counter[int](), Counter[int]()
        for cell in self.cells:
            for seed, is_right in zip(cell.seeds, cell.right, strict=True):
                right[seed] += is_right
                number[seed] += 1
        return clustered(np.array([right[seed] for seed in number], float), np.array(list(number.values()), float))

    @property
    def cost(self) -> Share:
        """Of a request that has one scene, over all types of question."""
        single = [cell.core_ms for cell in self.cells if cell.type != "which"]
        return middle([statistics.fmean(run) for run in zip(*single, strict=True)])

    def of(self, type_: str) -> Cell:
        return next(cell for cell in self.cells if cell.type == type_)


def middle(runs: Sequence[float]) -> Share:
    """The median of all runs, between the lowest and the highest."""
    return Share(statistics.median(runs), min(runs), max(runs))


def rows_of(cells: Sequence[Cell]) -> list[Row]:
    """In the order of the ways' first cells."""
    ways = dict.fromkeys(cell.way for cell in cells)
    return [Row(way, tuple(cell for cell in cells if cell.way == way)) for way in ways]
