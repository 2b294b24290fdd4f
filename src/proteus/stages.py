"""Where a request's time went: a stopwatch of named stages, in milliseconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Stopwatch:
    """Times of one request. Stages are added up by name; `total` runs from the start."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._start_s = clock_s()
        self._stages_ms: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time the block under `name`, also when it raises."""
        start_s = self._clock_s()
        try:
            yield
        finally:
            self.add(name, (self._clock_s() - start_s) * 1e3)

    def add(self, name: str, ms: float) -> None:
        """Add a time measured elsewhere."""
        self._stages_ms[name] = self._stages_ms.get(name, 0.0) + ms

    def ms(self, name: str) -> float:
        """Of one stage, so far."""
        return self._stages_ms.get(name, 0.0)

    def report_ms(self) -> dict[str, float]:
        """Every stage so far, in the order of their first use, `transfer` and `total`; rounded to µs.

        `transfer` is what no stage holds: the hops between models and the event loop's own work.
        """
        total_ms = (self._clock_s() - self._start_s) * 1e3
        transfer_ms = max(0.0, total_ms - sum(self._stages_ms.values()))
        times_ms = {**self._stages_ms, "transfer": transfer_ms, "total": total_ms}
        return {name: round(ms, 3) for name, ms in times_ms.items()}
