"""Ends this process when its event loop stands still, so that whoever watches the process starts it anew.

Locks inside Triton 2.51's Python backend can stop everything written in Python (docs/decisions/0005); the ways that we
know are closed. The timer of `faulthandler` is a thread that does not need Python's lock.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
from collections.abc import Callable

BEAT_S = 1.0
STANDSTILL_S = 10.0


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
