"""The requests that are open, and whether more may come."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
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

    async def drain(self, most_s: float) -> int:
        """Takes nothing more, and waits until none is open, or ends what is then; how many those were."""
        self.draining = True
        end_s = asyncio.get_running_loop().time() + most_s
        while self.open and asyncio.get_running_loop().time() < end_s:
            await asyncio.sleep(POLL_S)
        late = self.open
        for work in tuple(self._works):
            work.cancel()
        return late
