from __future__ import annotations

import pytest

from proteus.stages import Stopwatch


class Clock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_stages_add_up_by_name_and_total_runs_from_the_start() -> None:
    clock = Clock()
    watch = Stopwatch(clock)
    for _ in range(2):
        with watch.stage("encode"):
            clock.now_s += 0.25
    clock.now_s += 1
    watch.add("decode", 7.0)
    assert (watch.ms("encode"), watch.ms("queue")) == (500.0, 0.0)
    assert watch.report_ms() == {"encode": 500.0, "decode": 7.0, "transfer": 993.0, "total": 1500.0}


def test_stage_that_fails_is_timed_too() -> None:
    clock = Clock()
    watch = Stopwatch(clock)

    def fail() -> None:
        with watch.stage("plan"):
            clock.now_s += 0.5
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert watch.report_ms()["plan"] == 500.0
