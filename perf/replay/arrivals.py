"""Moments at which sessions begin: steady, in bursts, on and off, or with a heavy tail; all of the same mean rate."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from random import Random
from typing import Annotated, Literal

from pydantic import Field

from perf.replay.spreads import NotNegative, Table, geometric

MAX_SESSIONS = 1_000_000
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Arrivals(Table):
    sessions_per_s: Positive  # the mean over a long time


class Poisson(Arrivals):
    """Each moment as likely as any other."""

    process: Literal["poisson"]

    def moments(self, rng: Random) -> Iterator[float]:
        return itertools.accumulate(rng.expovariate(self.sessions_per_s) for _ in itertools.count())


class Bursts(Arrivals):
    """Several at once: bursts at Poisson's moments, of geometric size."""

    process: Literal["bursts"]
    burst_sessions: Annotated[float, Field(ge=1, le=1e9)]  # mean of a burst
    spread_s: NotNegative = 0.2  # of the sessions of one burst

    def moments(self, rng: Random) -> Iterator[float]:
        """Not quite ascending: bursts may overlap."""
        bursts_per_s = self.sessions_per_s / self.burst_sessions
        for begin_s in itertools.accumulate(rng.expovariate(bursts_per_s) for _ in itertools.count()):
            for _ in range(geometric(rng, self.burst_sessions)):
                yield begin_s + rng.uniform(0, self.spread_s)


class OnOff(Arrivals):
    """Phases of exponential length; nothing arrives while it is off."""

    process: Literal["on_off"]
    on_s: Annotated[float, Field(ge=1e-3)]  # mean length of a phase
    off_s: Annotated[float, Field(ge=1e-3)]

    def moments(self, rng: Random) -> Iterator[float]:
        rate_on_per_s = self.sessions_per_s * (self.on_s + self.off_s) / self.on_s
        now_s = 0.0
        while True:
            end_s = now_s + rng.expovariate(1 / self.on_s)
            while (now_s := now_s + rng.expovariate(rate_on_per_s)) < end_s:
                yield now_s
            now_s = end_s + rng.expovariate(1 / self.off_s)


class HeavyTail(Arrivals):
    """Pareto gaps: long silences, and crowds between them."""

    process: Literal["heavy_tail"]
    alpha: Annotated[float, Field(gt=1)]  # the nearer to 1, the heavier

    def moments(self, rng: Random) -> Iterator[float]:
        shortest_s = (self.alpha - 1) / self.alpha / self.sessions_per_s
        return itertools.accumulate(shortest_s * rng.paretovariate(self.alpha) for _ in itertools.count())


Process = Annotated[Poisson | Bursts | OnOff | HeavyTail, Field(discriminator="process")]


def session_begins(process: Process, seconds: float, rng: Random) -> list[float]:
    """Ascending, all below `seconds`; one more than MAX_SESSIONS at most."""
    # A burst that begins in time may end after it, and the one after it begin earlier: what is late is left out first.
    slack_s = process.spread_s if isinstance(process, Bursts) else 0.0
    in_time = itertools.takewhile(lambda moment_s: moment_s < seconds + slack_s, process.moments(rng))
    below = (moment_s for moment_s in in_time if moment_s < seconds)
    return sorted(itertools.islice(below, MAX_SESSIONS + 1))
