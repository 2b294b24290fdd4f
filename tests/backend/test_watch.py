"""What a door tells Triton at each beat, with a Triton that takes its time."""

from __future__ import annotations

import asyncio
import importlib
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from types import ModuleType
from typing import Any

import pytest

from proteus.admission.figures import Figure
from proteus.door.observed import MAX_WAITING, Histogram, Observation, Observed

GAUGE = Figure(name="gauge", meaning="m")
TIMES = Histogram(name="times", meaning="m", labels=(), buckets=(1.0,))
NAMES = [f"proteus.backend.{name}" for name in ("metrics", "watch")]


class TritonModelException(Exception):
    pass


class Triton:
    """Takes what it is told when the test lets it."""

    def __init__(self) -> None:
        self.told: list[tuple[str, float]] = []
        self.may_take, self.refuses = threading.Event(), False
        self.may_take.set()

    def family(self, *, name: str, **_: Any) -> Any:
        def take(value: float) -> None:
            assert self.may_take.wait(10)
            if self.refuses:
                raise TritonModelException("the server is busy")
            self.told.append((name, value))

        class Metric:
            observe = set = staticmethod(take)

        class Family:
            def Metric(self, **_: Any) -> type[Metric]:
                return Metric

        return Family()


class Values:
    def __init__(self, value: float) -> None:
        self._value = value

    def values(self, name: str) -> Mapping[str, float]:
        return {"": self._value}


@pytest.fixture
def port() -> Triton:
    return Triton()


@pytest.fixture
def watch_of(port: Triton, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[], Values]], Any]]:
    class MetricFamily:
        COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"

        def __new__(cls, **facts: Any) -> Any:
            return port.family(**facts)

    module: Any = ModuleType("triton_python_backend_utils")
    module.MetricFamily, module.TritonModelException = MetricFamily, TritonModelException
    monkeypatch.setitem(sys.modules, module.__name__, module)
    made = []

    def watch_of(figures: Callable[[], Values]) -> Any:
        watch = importlib.import_module(NAMES[-1]).Watch("toy", (TIMES,), [((GAUGE,), figures)], tells_memory=False)
        made.append(watch)
        return watch

    yield watch_of
    for watch in made:
        watch.close()
    for name in NAMES:
        sys.modules.pop(name, None)


def seen(num: int) -> Observed:
    observed = Observed()
    observed._waiting = [Observation("times", (), float(index)) for index in range(num)]
    return observed


async def signs(watch: Any, observed: Observed) -> int:
    return len([sign async for sign in watch.tell(observed)])


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 20))


def test_all_is_told_in_order_and_many_times_with_signs_of_life(port: Triton, watch_of: Any) -> None:
    async def scenario() -> None:
        watch = watch_of(lambda: Values(7.0))
        assert await signs(watch, seen(MAX_WAITING)) >= 10
        assert port.told == [*(("times", float(index)) for index in range(MAX_WAITING)), ("gauge", 7.0)]
        await signs(watch, seen(0))
        assert len(port.told) == MAX_WAITING + 1, "only what changed"

    run(scenario())


def test_what_is_dropped_meanwhile_is_counted_with_what_triton_did_not_take(port: Triton, watch_of: Any) -> None:
    async def scenario() -> None:
        port.refuses, observed = True, seen(3)
        port.may_take.clear()
        telling = asyncio.create_task(signs(watch_of(lambda: Values(0.0)), observed))
        await asyncio.sleep(0.01)
        observed.dropped += 10  # by a request whose times found no room
        port.may_take.set()
        await telling
        assert observed.dropped == 13

    run(scenario())


def test_figures_of_a_moment_that_is_over_cost_no_times(port: Triton, watch_of: Any) -> None:
    asked: list[int] = []

    def figures() -> Values:
        asked.append(1)
        if len(asked) == 1:
            raise ValueError("figures of a moment that is over")
        return Values(1.0)

    async def scenario() -> None:
        watch, observed = watch_of(figures), seen(2)
        with pytest.raises(ValueError, match="a moment"):
            await signs(watch, observed)
        await signs(watch, observed)
        assert port.told == [("times", 0.0), ("times", 1.0), ("gauge", 1.0)]

    run(scenario())
