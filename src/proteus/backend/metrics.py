"""A room's figures on Triton's metrics port. Names and meanings stand in docs/operating.md."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import triton_python_backend_utils as pb_utils

TELL_S = 1.0


class Row(Protocol):
    """One Prometheus family; `admission.figures.Figure` is one."""

    @property
    def name(self) -> str: ...

    @property
    def meaning(self) -> str: ...

    @property
    def label(self) -> str:
        """The one label, "" where there is a single value."""
        ...

    @property
    def counts(self) -> bool:
        """Only grows."""
        ...


class Distribution(Protocol):
    """One Prometheus family of histograms; `door.observed.Histogram` is one."""

    @property
    def name(self) -> str: ...

    @property
    def meaning(self) -> str: ...

    @property
    def labels(self) -> tuple[str, ...]: ...

    @property
    def buckets(self) -> tuple[float, ...]:
        """Upper bounds, growing; Triton adds the one without a bound."""
        ...


class Observed(Protocol):
    """One value of a family."""

    @property
    def name(self) -> str: ...

    @property
    def labels(self) -> tuple[str, ...]:
        """Values of the family's labels, in their order."""
        ...

    @property
    def value(self) -> float: ...


class Values(Protocol):
    def values(self, name: str) -> Mapping[str, float]:
        """Values of one family by the value of its label, "" where it has none."""
        ...


class Metrics:
    """A family for each row; only what changed is sent to Triton. For one thread.

    Gauges that several processes tell show what the last one told, unless they add up.
    """

    def __init__(self, rows: Sequence[Row], *, adds_up: bool = False) -> None:
        self._rows, self._adds_up = rows, adds_up
        self._families = {
            row.name: pb_utils.MetricFamily(
                name=row.name,
                description=row.meaning,
                kind=pb_utils.MetricFamily.COUNTER if row.counts else pb_utils.MetricFamily.GAUGE,
            )
            for row in rows
        }
        self._metrics: dict[tuple[str, str], Any] = {}
        self._told: dict[tuple[str, str], float] = {}

    def tell(self, figures: Values) -> None:
        """Bring the metrics port up to `figures`; what Triton does not take is tried again with the next ones."""
        for row in self._rows:
            for label, value in figures.values(row.name).items():
                labels = {row.label: label} if row.label else {}
                with suppress(pb_utils.TritonModelException):
                    self._tell(row.name, labels, label, value, row.counts)

    def _tell(self, name: str, labels: Mapping[str, str], label: str, value: float, counts: bool) -> None:
        key = name, label
        before = self._told.get(key)
        if before == value:
            return
        metric = self._metrics.get(key)
        if metric is None:
            metric = self._metrics[key] = self._families[name].Metric(labels=dict(labels))
        if counts or self._adds_up:
            metric.increment(value - (before or 0.0))
        else:
            metric.set(value)
        self._told[key] = value


class Histograms:
    """A family for each row. For one thread."""

    def __init__(self, rows: Sequence[Distribution]) -> None:
        self._rows = {row.name: row for row in rows}
        self._families = {
            row.name: pb_utils.MetricFamily(
                name=row.name, description=row.meaning, kind=pb_utils.MetricFamily.HISTOGRAM
            )
            for row in rows
        }
        self._metrics: dict[tuple[str, tuple[str, ...]], Any] = {}

    def tell(self, observed: Sequence[Observed]) -> int:
        """How many Triton did not take; they are lost."""
        lost = 0
        for one in observed:
            try:
                self._metric(one.name, one.labels).observe(one.value)
            except pb_utils.TritonModelException:
                lost += 1
        return lost

    def _metric(self, name: str, labels: tuple[str, ...]) -> Any:
        key = name, labels
        if key not in self._metrics:
            row = self._rows[name]
            named = dict(zip(row.labels, labels, strict=True))
            self._metrics[key] = self._families[name].Metric(labels=named, buckets=list(row.buckets))
        return self._metrics[key]


class Telling:
    """Tells figures at every `every_s`, from a thread of its own: the last ones of a burst arrive without a request.

    For models without an event loop; those with one have a heart (`heartbeat`). `at_each` is called every time before.
    """

    def __init__(
        self,
        metrics: Metrics,
        figures: Callable[[], Values],
        *,
        at_each: Callable[[], None] = lambda: None,
        every_s: float = TELL_S,
    ) -> None:
        self._metrics, self._figures, self._at_each = metrics, figures, at_each
        self._every_s = every_s
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Returns when nothing will be told any more."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(self._every_s):
            try:
                self._at_each()
                self._metrics.tell(self._figures())
            except Exception:  # whatever it is, the next figures may be told
                logging.getLogger(__name__).exception("the figures could not be told")
