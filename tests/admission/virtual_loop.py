"""An event loop whose time jumps to the next timer as soon as nothing else is left to do."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Value = TypeVar("Value")


class _JumpingSelector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    now_s = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready: list[tuple[selectors.SelectorKey, int]] = super().select(0)
        if timeout is None and not ready:
            raise RuntimeError("nothing is left that could wake anyone")
        if not ready:
            self.now_s += timeout or 0.0
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s


def run(main: Coroutine[Any, Any, Value]) -> Value:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


async def settle() -> None:
    """Lets every other task run until it waits."""
    for _ in range(20):
        await asyncio.sleep(0)
