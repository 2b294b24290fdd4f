"""Threads that wait for Triton, and are used again: to start one keeps the event loop for a fifth of a millisecond."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

MAX_IDLE = 16
Work = Callable[[], None]  # raises nothing


class Threads:
    """As many as there are works, and some that are idle.

    Daemons: the call of a model that died may never end, and must not keep this process.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._num_idle = 0
        self._works: SimpleQueue[Work] = SimpleQueue()  # each for one that is idle, or was just started

    def begin(self, work: Work) -> None:
        """In a thread of its own; RuntimeError when there is none to be had."""
        with self._lock:
            has_idle = self._num_idle > 0
            self._num_idle -= has_idle
        if not has_idle:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        self._works.put(work)

    def _run(self) -> None:
        while True:
            work = self._works.get()
            work()
            del work  # and all that it holds
            if not self._stays():
                return

    def _stays(self) -> bool:
        with self._lock:
            stays = self._num_idle < MAX_IDLE
            self._num_idle += stays
        return stays
