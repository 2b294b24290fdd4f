"""Distributions of lengths, sizes and times, as a profile names them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from random import Random
from typing import Annotated, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

Key = TypeVar("Key")
NotNegative = Annotated[float, Field(ge=0)]  # no length, size or time is below
MOST = 1e18  # what a distribution gives at most, whatever its tail


class Table(BaseModel):
    """A table of the profile; an unknown key is a mistake, and so is a number that is none."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Bounded(Table):
    """What falls outside is put on the nearer bound."""

    min: NotNegative = 0.0
    max: NotNegative = MOST

    @model_validator(mode="after")
    def _has_room(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min = {self.min:g} is above max = {self.max:g}")
        return self

    def bounded(self, value: float) -> float:
        return min(self.max, max(self.min, value))


class Fixed(Table):
    distribution: Literal["fixed"]
    value: NotNegative

    def draw(self, rng: Random) -> float:
        return self.value


class Uniform(Bounded):
    distribution: Literal["uniform"]
    min: NotNegative
    max: NotNegative

    def draw(self, rng: Random) -> float:
        return rng.uniform(self.min, self.max)


class LogNormal(Bounded):
    distribution: Literal["lognormal"]
    median: Annotated[float, Field(gt=0, le=MOST)]
    sigma: Annotated[float, Field(ge=0, le=10)]  # of the natural logarithm

    def draw(self, rng: Random) -> float:
        return self.bounded(rng.lognormvariate(math.log(self.median), self.sigma))


class Pareto(Bounded):
    """Begins at `min`; the smaller `alpha`, the heavier the tail."""

    distribution: Literal["pareto"]
    min: Annotated[float, Field(gt=0)]
    alpha: Annotated[float, Field(ge=0.1)]

    def draw(self, rng: Random) -> float:
        return self.bounded(self.min * rng.paretovariate(self.alpha))


class Geometric(Bounded):
    """1, 2, 3 …: each further one is as likely as the last."""

    distribution: Literal["geometric"]
    mean: Annotated[float, Field(ge=1, le=1e9)]

    def draw(self, rng: Random) -> float:
        return self.bounded(geometric(rng, self.mean))


Spread = Annotated[Fixed | Uniform | LogNormal | Pareto | Geometric, Field(discriminator="distribution")]


def geometric(rng: Random, mean: float) -> int:
    """1, 2, 3 … with this mean."""
    if mean <= 1:
        return 1
    return 1 + math.floor(math.log(1 - rng.random()) / math.log(1 - 1 / mean))


def whole(spread: Spread, rng: Random) -> int:
    """At least 1."""
    return max(1, round(spread.draw(rng)))


def some_weight(weights: Mapping[Key, float]) -> Mapping[Key, float]:
    if not weights or min(weights.values()) < 0 or not 0 < sum(weights.values()) < math.inf:
        raise ValueError("weights are at least 0 and finite, and one of them is above")
    return weights


Weights = Annotated[Mapping[Key, float], AfterValidator(some_weight)]


def pick(weights: Mapping[Key, float], rng: Random) -> Key:
    """One of the keys, as likely as its weight."""
    return rng.choices(list(weights), list(weights.values()))[0]
