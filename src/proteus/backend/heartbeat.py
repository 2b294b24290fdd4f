"""Ends this process when its event loop or its engine stands still, so that who watches the process starts it anew.

Locks inside Triton 2.51's Python backend can stop everything written in Python (docs/decisions/0005); the ways that we
know are closed. The timer of `faulthandler` is a thread that does not need Python's lock.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import time
from collections.abc import Callable
from typing import NoReturn, Protocol

BEAT_S = 1.0
STANDSTILL_S = 10.0
ENGINE_STANDSTILL_S = 120.0  # of one iteration, which on a large model may be a long prompt as a whole


async def beat(at_each: Callable[[], None]) -> None:
    """Run for as long as the loop does; the stacks of a process that ends go to the server's log."""
    try:
        while True:
            faulthandler.dump_traceback_later(STANDSTILL_S, exit=True)
            try:
                at_each()
            except Exception:  # whatever it is, the heart goes on
                logging.getLogger(__name__).exception("what is done at each beat failed")
            await asyncio.sleep(BEAT_S)
    finally:
        faulthandler.cancel_dump_traceback_later()


class Watched(Protocol):
    @property
    def is_alive(self) -> bool: ...

    @property
    def num_in_flight(self) -> int: ...

    @property
    def num_iterations(self) -> int:
        """Grows as long as something is in flight."""
        ...


class EngineWatch:
    """Asked once in a while: `check` ends the process when the engine's loop has ended or hangs in an iteration."""

    def __init__(self, engine: Watched, *, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._engine, self._clock_s = engine, clock_s
        self._num_iterations, self._since_s = -1, 0.0

    def check(self) -> None:
        if self.stands_still():
            end_process()

    def stands_still(self) -> bool:
        """Whether nothing will come of what is in flight, nor of what may be sent."""
        num_iterations, now_s = self._engine.num_iterations, self._clock_s()
        if not self._engine.is_alive:
            return True
        if num_iterations != self._num_iterations or self._engine.num_in_flight == 0:
            self._num_iterations, self._since_s = num_iterations, now_s
        return now_s - self._since_s >= ENGINE_STANDSTILL_S


def end_process() -> NoReturn:
    """At once; the stacks of all threads go to the server's log."""
    faulthandler.dump_traceback()
    os._exit(1)
