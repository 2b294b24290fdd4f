"""What pictures scored by the rule verifier, as shares with 95 % intervals. Pure.

P prompts; one picture of each, so intervals of shares of pictures are Wilson's; things of one picture hang together, so
those of shares of things come from drawing whole prompts again (bootstrap).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from export.world.verify import Verdict

Z95 = 1.959964
RESAMPLES = 2_000
Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Share:
    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One picture against its wish."""

    background: bool
    count: bool
    exact: bool
    colours: int  # of the things, those of the right colour
    shapes: int
    things: int

    @classmethod
    def of(cls, verdict: Verdict) -> Self:
        return cls(
            background=verdict.background,
            count=verdict.count,
            exact=verdict.exact,
            colours=sum(verdict.colours),
            shapes=sum(verdict.shapes),
            things=len(verdict.shapes),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A way to draw, what it cost, and what came of it: one score for each prompt, in their order."""

    sampler: str
    steps: int
    guidance: float
    evaluations: float  # of one picture: NFE
    core_s: float  # of one picture, text and decoding included
    scores: tuple[Score, ...]

    @property
    def name(self) -> str:
        return f"{self.sampler}/{self.steps}/{self.guidance:g}"

    def of_pictures(self, key: str) -> Share:
        """The share of pictures whose background, count, or all is right."""
        return wilson(sum(getattr(score, key) for score in self.scores), len(self.scores))

    def of_things(self, key: str) -> Share:
        """The share of things whose colour or shape is right."""
        right = np.array([getattr(score, key) for score in self.scores], np.float64)
        things = np.array([score.things for score in self.scores], np.float64)
        return clustered(right, things)

    def gain_over(self, other: Point) -> Share:
        """How much larger the share of exact pictures is than the other's, prompt by prompt."""
        gains = [float(mine.exact) - theirs.exact for mine, theirs in zip(self.scores, other.scores, strict=True)]
        return clustered(np.array(gains), np.ones(len(gains)))

    def as_document(self) -> dict[str, Any]:
        """For JSON, without the single scores."""
        shares = {key: self.of_pictures(key) for key in ("background", "count", "exact")}
        shares |= {key: self.of_things(key) for key in ("colours", "shapes")}
        return {
            "sampler": self.sampler,
            "steps": self.steps,
            "guidance": self.guidance,
            "evaluations": round(self.evaluations, 2),
            "core_s": round(self.core_s, 5),
            "pictures": len(self.scores),
            **{
                key: [round(share.value, 4), round(share.low, 4), round(share.high, 4)] for key, share in shares.items()
            },
        }


def wilson(right: int, number: int) -> Share:
    """Of independent answers, yes or no."""
    share, spread = right / number, Z95**2 / number
    middle = (share + spread / 2) / (1 + spread)
    half = Z95 / (1 + spread) * math.sqrt(share * (1 - share) / number + spread / (4 * number))
    return Share(share, max(0.0, middle - half), min(1.0, middle + half))


def clustered(right: Numbers, number: Numbers) -> Share:
    """Σ right / Σ number, both (P,); whole prompts are drawn again, the same ones for every point."""
    chosen = np.random.default_rng(0).integers(len(right), size=(RESAMPLES, len(right)))
    again = right[chosen].sum(axis=1) / number[chosen].sum(axis=1)
    low, high = np.quantile(again, (0.025, 0.975))
    return Share(float(right.sum() / number.sum()), float(low), float(high))


def front(points: Sequence[Point]) -> list[Point]:
    """Those that no other one beats: nothing as cheap is exact more often. By cost."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda point: (point.core_s, -point.of_pictures("exact").value)):
        if not kept or point.of_pictures("exact").value > kept[-1].of_pictures("exact").value:
            kept.append(point)
    return kept
