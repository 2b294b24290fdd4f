from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import dataclass

import pytest

from proteus.backend import heartbeat


def test_the_heart_goes_on_when_what_it_does_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "BEAT_S", 0.0)
    beats = []

    def failing() -> None:
        beats.append(1)
        raise RuntimeError("no metrics port")

    async def scenario() -> None:
        beating = asyncio.create_task(heartbeat.beat(failing))
        while len(beats) < 3:
            await asyncio.sleep(0)
        beating.cancel()

    asyncio.run(asyncio.wait_for(scenario(), 10))
    assert len(beats) >= 3


@dataclass
class Engine:
    is_alive: bool = True
    num_in_flight: int = 0
    num_iterations: int = 0


def test_an_engine_stands_still_when_an_iteration_takes_too_long_and_not_when_it_has_nothing_to_do() -> None:
    engine, now_s = Engine(), [0.0]
    watch = heartbeat.EngineWatch(engine, clock_s=lambda: now_s[0])
    for now_s[0], num_in_flight, num_iterations, stands in (
        (0.0, 0, 0, False),
        (9999.0, 0, 0, False),  # nothing to do
        (10_000.0, 1, 0, False),  # the first request after a long time
        (10_100.0, 1, 0, False),
        (10_118.0, 1, 1, False),  # it got on
        (10_237.0, 1, 1, False),
        (10_238.0, 1, 1, True),
    ):
        engine.num_in_flight, engine.num_iterations = num_in_flight, num_iterations
        assert watch.stands_still() is stands


def test_an_engine_whose_loop_has_ended_stands_still() -> None:
    assert heartbeat.EngineWatch(Engine(is_alive=False)).stands_still()


def test_the_process_of_an_engine_that_stands_still_ends_with_its_stacks_in_the_log() -> None:
    code = (
        "from types import SimpleNamespace; from proteus.backend.heartbeat import EngineWatch; "
        "EngineWatch(SimpleNamespace(is_alive=False, num_in_flight=0, num_iterations=0)).check(); print('went on')"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "most recent call first" in ended.stderr
