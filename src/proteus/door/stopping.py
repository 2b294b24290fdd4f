"""Telling a model that its work is not wanted any more. Triton hands no cancel on to a model's children."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from proteus.errors import ProteusError


class Stopping:
    """For the requests that one request sent to a model; `stop` tells the model to end one of them."""

    def __init__(self, stop: Callable[[bytes], Awaitable[None]]) -> None:
        self._stop = stop
        self._telling = set[asyncio.Task[None]]()

    async def when(self, gone: Awaitable[None], request_keys: Iterable[bytes]) -> None:
        """Returns when nobody listens any more, which is the end of `gone`, and the model was told."""
        await gone
        await self.tell(request_keys)

    async def tell(self, request_keys: Iterable[bytes]) -> None:
        """Tell the model, also when this task is ended meanwhile."""
        telling = asyncio.create_task(self._send(request_keys))
        self._telling.add(telling)
        telling.add_done_callback(self._telling.discard)
        await asyncio.shield(telling)

    async def _send(self, request_keys: Iterable[bytes]) -> None:
        results = await asyncio.gather(*map(self._stop, request_keys), return_exceptions=True)
        for error in results:
            if isinstance(error, BaseException) and not isinstance(error, ProteusError):
                raise error  # one of ours says that the model is gone, and its requests with it
