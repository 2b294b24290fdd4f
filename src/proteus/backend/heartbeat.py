"""Ends this process when its event loop stands still, so that whoever watches the process starts it anew.

Inside Triton 2.51's response iterators three threads can wait for each other with Python's lock held: one starts a
stream, one wakes up for a response of another stream, one brings that stream's next. Nothing written in Python runs
then; the timer of `faulthandler` is a thread that does not need the lock.
"""

from __future__ import annotations

import asyncio
import faulthandler

BEAT_S = 1.0
STANDSTILL_S = 8.0


async def beat() -> None:
    """Run for as long as the loop does; the stacks of a process that ends go to the server's log."""
    try:
        while True:
            faulthandler.dump_traceback_later(STANDSTILL_S, exit=True)
            await asyncio.sleep(BEAT_S)
    finally:
        faulthandler.cancel_dump_traceback_later()
