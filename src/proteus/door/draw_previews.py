"""Previews of one picture: at most one in the making, and of those that come meanwhile only the latest is made.

They never hold up the picture: one that is not ready when the picture is, or that fails, is left out and counted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from proteus.door.draw_figures import DrawCounts
from proteus.errors import ProteusError
from proteus.generation.task import DrawEvent

AT_ONCE = 4  # of one door: finished pictures need the decoder and the threads more


class Previews:
    """`make` makes one and sends it; `places` bounds those in the making at the whole door."""

    def __init__(
        self, make: Callable[[DrawEvent], Awaitable[None]], places: asyncio.Semaphore, counts: DrawCounts
    ) -> None:
        self._make, self._places, self._counts = make, places, counts
        self._latest: DrawEvent | None = None
        self._making: asyncio.Task[None] | None = None

    def offer(self, event: DrawEvent) -> None:
        """A step of which a preview is wanted; returns at once."""
        self._drop_latest()
        self._latest = event
        if self._making is None or self._making.done():
            self._making = asyncio.create_task(self._make_all())

    async def close(self) -> None:
        """No preview is sent after this."""
        self._drop_latest()
        if self._making is not None:
            self._making.cancel()
            await asyncio.wait({self._making})

    async def _make_all(self) -> None:
        while self._latest is not None:
            async with self._places:
                # What came while it waited for a place has taken the place of what it waited for.
                event, self._latest = self._latest, None
                if event is not None:
                    self._counts.previews[await self._outcome(event)] += 1

    async def _outcome(self, event: DrawEvent) -> str:
        try:
            await self._make(event)
        except asyncio.CancelledError:
            self._counts.previews["dropped"] += 1
            raise
        except ProteusError:
            return "failed"
        except Exception:
            logging.getLogger(__name__).exception("a preview could not be made")
            return "failed"
        return "sent"

    def _drop_latest(self) -> None:
        if self._latest is not None:
            self._latest = None
            self._counts.previews["dropped"] += 1
