"""Ends this process when its event loop stands still, so that whoever watches the process starts it anew.

Locks inside Triton 2.51's Python backend can stop everything written in Python (docs/decisions/0005); the ways that we
know are closed. The timer of `faulthandler` is a thread that does not need Python's lock.
"""

from __future__ import annotations

import asyncio
import faulthandler
from collections.abc import Callable

BEAT_S = 1.0
STANDSTILL_S = 10.0


async def beat(at_each: Callable[[], None]) -> None:
    """Run for as long as the loop does; the stacks of a process that ends go to the server's log."""
    try:
        while True:
            faulthandler.dump_traceback_later(STANDSTILL_S, exit=True)
            at_each()
            await asyncio.sleep(BEAT_S)
    finally:
        faulthandler.cancel_dump_traceback_later()
