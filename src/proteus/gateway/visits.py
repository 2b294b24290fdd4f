"""The requests that are open, and whether more may come."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from proteus.gateway.errors import Draining

COME_BACK_S = 5.0  # to another gateway, or to this one started anew
POLL_S = 0.05


def draining() -> Draining:
    return Draining("the gateway is stopping", fix=f"try again in {COME_BACK_S:.1f} s")


class Visits:
    """Of one event loop."""

    def __init__(self) -> None:
        self.open = 0
        self.draining = False
        self._works: set[asyncio.Future[Any]] = set()

    @contextmanager
    def one(self) -> Iterator[None]:
        """Raises Draining once nothing more is taken."""
        if self.draining:
            raise draining()
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1

    @contextmanager
    def working(self, work: asyncio.Future[Any]) -> Iterator[None]:
        """What is done for one of them, which `end` ends."""
        self._works.add(work)
        try:
            yield
        finally:
            self._works.discard(work)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """The running task reads a body, which `end` ends too."""
        task = asyncio.current_task()
        with nullcontext() if task is None else self.working(task):
            yield

    async def drain(self) -> None:
        """Takes nothing more, and waits until none is open."""
        self.draining = True
        while self.open:
            await asyncio.sleep(POLL_S)

    async def end(self, most_s: float) -> None:
        """Ends what is open; clients are told why."""
        for work in tuple(self._works):
            work.cancel()
        for _ in range(int(most_s / POLL_S)):
            if not self.open:
                break
            await asyncio.sleep(POLL_S)
