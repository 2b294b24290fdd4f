"""Until something comes to hold."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic, sleep


def wait_for(condition: Callable[[], bool], timeout_s: float = 20.0) -> bool:
    """Whether it did, in time."""
    deadline = monotonic() + timeout_s
    while not condition():
        if monotonic() > deadline:
            return False
        sleep(0.02)
    return True
