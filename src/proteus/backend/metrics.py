"""The door's figures on Triton's metrics port. Names and meanings stand in docs/operating.md."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import triton_python_backend_utils as pb_utils

from proteus.admission.figures import FIGURES, Figures


class DoorMetrics:
    """One Prometheus family for each row of FIGURES; only what changed is sent to Triton."""

    def __init__(self) -> None:
        self._families = {
            figure.name: pb_utils.MetricFamily(
                name=figure.name,
                description=figure.meaning,
                kind=pb_utils.MetricFamily.COUNTER if figure.counts else pb_utils.MetricFamily.GAUGE,
            )
            for figure in FIGURES
        }
        self._metrics: dict[tuple[str, str], Any] = {}
        self._told: dict[tuple[str, str], float] = {}

    def tell(self, figures: Figures) -> None:
        """Bring the metrics port up to `figures`; what Triton does not take is tried again with the next ones."""
        for figure in FIGURES:
            for label, value in figures.values(figure.name).items():
                labels = {figure.label: label} if figure.label else {}
                with suppress(pb_utils.TritonModelException):
                    self._tell(figure.name, labels, label, value, figure.counts)

    def _tell(self, name: str, labels: Mapping[str, str], label: str, value: float, counts: bool) -> None:
        key = name, label
        before = self._told.get(key)
        if before == value:
            return
        metric = self._metrics.get(key)
        if metric is None:
            metric = self._metrics[key] = self._families[name].Metric(labels=dict(labels))
        if counts:
            metric.increment(value - (before or 0.0))
        else:
            metric.set(value)
        self._told[key] = value
