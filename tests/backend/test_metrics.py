"""Figures on their way to Triton's metrics port, with a Triton that notes what it is told."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import pytest

from proteus.admission.figures import Figure
from proteus.door.observed import Histogram, Observation

ROWS = (
    Figure(name="gauge", meaning="m"),
    Figure(name="count", meaning="m", counts=True),
    Figure(name="labelled", meaning="m", label="colour"),
)
TIMES = Histogram(name="times", meaning="m", labels=("stage", "size"), buckets=(1.0, 10.0))
Values = dict[str, dict[str, float]]


class TritonModelException(Exception):
    pass


class Port:
    """What stands on the metrics port, by family and labels; `refuses` is how many calls fail first."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str], float] = {}
        self.calls: list[tuple[str, float]] = []
        self.refuses = 0
        self.adds_up = False
        self.told = threading.Event()

    def family(self, *, name: str, description: str, kind: str) -> Any:
        port = self

        class Metric:
            def __init__(self, labels: Mapping[str, str], buckets: list[float] | None = None) -> None:
                assert (buckets is not None) == (kind == "histogram")
                self.key = name, ",".join(f"{label}={value}" for label, value in labels.items())

            def set(self, value: float) -> None:
                assert kind == "gauge"
                port.tell(self.key, value)

            def increment(self, value: float) -> None:
                assert kind == "counter" or (kind == "gauge" and port.adds_up)
                port.tell(self.key, port.values.get(self.key, 0.0) + value)

            def observe(self, value: float) -> None:
                assert kind == "histogram"
                port.tell(self.key, port.values.get(self.key, 0.0) + value)

        class Family:
            def Metric(self, labels: Mapping[str, str], buckets: list[float] | None = None) -> Metric:
                return Metric(labels, buckets)

        return Family()

    def tell(self, key: tuple[str, str], value: float) -> None:
        if self.refuses:
            self.refuses -= 1
            raise TritonModelException("the server is busy")
        self.values[key] = value
        self.calls.append((key[0], value))
        self.told.set()


class Seen:
    def __init__(self, values: Values) -> None:
        self._values = values

    def values(self, name: str) -> Mapping[str, float]:
        return self._values[name]


def seen(gauge: float, count: float, **colours: float) -> Seen:
    return Seen({"gauge": {"": gauge}, "count": {"": count}, "labelled": colours})


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Port:
    port = Port()

    class MetricFamily:
        COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"

        def __new__(cls, **facts: Any) -> Any:
            return port.family(**facts)

    module: Any = ModuleType("triton_python_backend_utils")
    module.MetricFamily = MetricFamily
    module.TritonModelException = TritonModelException
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return port


@pytest.fixture
def metrics(port: Port) -> Iterator[Any]:
    yield importlib.import_module("proteus.backend.metrics")
    del sys.modules["proteus.backend.metrics"]


def test_the_port_shows_the_figures_told_last(metrics: Any, port: Port) -> None:
    told = metrics.Metrics(ROWS)
    told.tell(seen(1, 5, red=1))
    told.tell(seen(3, 7, red=1, blue=2))
    assert port.values == {
        ("gauge", ""): 3,
        ("count", ""): 7,
        ("labelled", "colour=red"): 1,
        ("labelled", "colour=blue"): 2,
    }


def test_only_what_changed_is_sent(metrics: Any, port: Port) -> None:
    told = metrics.Metrics(ROWS)
    told.tell(seen(0, 0, red=0))
    assert len(port.calls) == 3, "zeros are shown from the start"
    told.tell(seen(0, 0, red=0))
    told.tell(seen(0, 2, red=0))
    assert port.calls[3:] == [("count", 2)]


def test_what_triton_does_not_take_is_told_with_the_next_figures(metrics: Any, port: Port) -> None:
    told = metrics.Metrics(ROWS)
    port.refuses = 2
    told.tell(seen(1, 5, red=1))
    assert port.values == {("labelled", "colour=red"): 1}
    told.tell(seen(1, 6, red=1))
    assert port.values == {("gauge", ""): 1, ("count", ""): 6, ("labelled", "colour=red"): 1}


def test_figures_are_told_again_and_again_until_closed(metrics: Any, port: Port) -> None:
    asked: list[int] = []

    def figures() -> Seen:
        asked.append(1)
        if len(asked) == 1:
            raise ValueError("figures of a moment that is over")
        return seen(len(asked), 0)

    telling = metrics.Telling(metrics.Metrics(ROWS), figures, every_s=0.001)
    assert port.told.wait(10), "an error of one moment does not end it"
    port.told.clear()
    assert port.told.wait(10)
    telling.close()
    before = len(asked)
    assert port.values["gauge", ""] == before
    assert not telling._thread.is_alive()


def test_gauges_of_several_processes_can_add_up(metrics: Any, port: Port) -> None:
    port.adds_up = True
    first, second = (metrics.Metrics(ROWS, adds_up=True) for _ in range(2))
    first.tell(seen(5, 1, red=2))
    second.tell(seen(7, 1, red=2))
    first.tell(seen(1, 3, red=0))
    assert port.values == {("gauge", ""): 8, ("count", ""): 4, ("labelled", "colour=red"): 2}


def test_histograms_are_told_by_all_their_labels(metrics: Any, port: Port) -> None:
    histograms = metrics.Histograms((TIMES,))
    seen = [("encode", "1 MP", 2.0), ("encode", "4 MP", 5.0), ("encode", "1 MP", 0.5)]
    assert histograms.tell([Observation("times", (stage, size), value) for stage, size, value in seen]) == 0
    assert port.values == {("times", "stage=encode,size=1 MP"): 2.5, ("times", "stage=encode,size=4 MP"): 5.0}


def test_observations_that_triton_does_not_take_are_counted(metrics: Any, port: Port) -> None:
    port.refuses = 1
    assert metrics.Histograms((TIMES,)).tell([Observation("times", ("encode", "1 MP"), 1.0)] * 3) == 1
    assert port.values == {("times", "stage=encode,size=1 MP"): 2.0}
