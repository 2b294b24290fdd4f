"""To close from one thread what lives in another thread's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import TimeoutError as NotInTime
from typing import Any

Closing = Coroutine[Any, Any, None]


def close_in(loop: asyncio.AbstractEventLoop | None, aclose: Callable[[], Closing], most_s: float) -> None:
    """Run `aclose` in its loop, for `most_s` at most; a loop that has ended has ended what it held."""
    if loop is None or not loop.is_running():
        return
    closing = asyncio.run_coroutine_threadsafe(aclose(), loop)
    try:
        closing.result(most_s)
    except NotInTime:
        closing.cancel()
