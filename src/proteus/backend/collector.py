"""Events of one model with a loop of its own, collected for all open requests of this process and handed round."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Generic

import numpy as np

from proteus.backend.calls import Caller, Outputs
from proteus.backend.failures import TRY_AGAIN
from proteus.backend.fleet import Context
from proteus.backend.mailbox import Event, Letter
from proteus.backend.tensors import Array, from_bytes
from proteus.contract import MAILBOX_KEY_BYTES, ModelSpec
from proteus.errors import InternalError, ProteusError, Unavailable

SILENCE_S = 5.0  # of a model that answers every second; then it is taken for dead
RETRY_S = 0.2
TRUE = np.array([True])
NO_CONTEXT = Context(parameters={})
log = logging.getLogger(__name__)


class Collector(Generic[Event]):
    """One task collects, for as long as a request is open. `unpack` reads what the model answers a collector."""

    def __init__(self, caller: Caller, model: ModelSpec, unpack: Callable[[Outputs], Iterable[Letter[Event]]]) -> None:
        self._caller, self._model, self._unpack = caller, model, unpack
        self._mailbox = secrets.token_bytes(MAILBOX_KEY_BYTES)
        self._open: dict[bytes, asyncio.Queue[Event | ProteusError]] = {}  # by request key
        self._left_behind: set[bytes] = set()  # keys given up in a silence: the model may go on with them after it
        self._collecting: asyncio.Task[None] | None = None

    async def follow(
        self, request_key: bytes, inputs: Mapping[str, Array], context: Context
    ) -> AsyncGenerator[list[Event], None]:
        """Send the request, then all its events that have arrived, again and again; whoever asks knows the last one.

        Raises the error that ends the request.
        """
        arrived = self._open[request_key] = asyncio.Queue()
        try:
            if self._collecting is None or self._collecting.done():
                self._collecting = asyncio.create_task(self._collect())
            keys = {"request_key": from_bytes(request_key), "mailbox": from_bytes(self._mailbox)}
            await self._caller.call_decoupled(self._model, {**inputs, **keys}, context)
            while True:
                yield await _all_of(arrived)
        finally:
            del self._open[request_key]

    async def stop(self, request_key: bytes) -> None:
        """Tell the model, whether it has that request or not; raises Unavailable when it says nothing."""
        inputs = {"request_key": from_bytes(request_key), "stop": TRUE}
        try:
            async with asyncio.timeout(SILENCE_S):
                await self._caller.call_decoupled(self._model, inputs, NO_CONTEXT)
        except TimeoutError as error:
            raise self._silent() from error

    async def _collect(self) -> None:
        """Hand events round for as long as a request is open; when the model is gone, end them all with an error."""
        while self._open or self._left_behind:
            try:
                letters = await self._collected()
            except TimeoutError:
                await self._fail_all(self._silent())
                continue
            except ProteusError as error:
                await self._fail_all(error)
                continue
            except Exception:  # whatever it is, nobody may be left to wait: the system gave no thread, for one
                log.exception("events of %s could not be collected", self._model.name)
                await self._fail_all(InternalError())
                continue
            await self._stop_left_behind()
            for letter in letters:
                if (arrived := self._open.get(letter.request_key)) is not None:
                    arrived.put_nowait(letter.content)

    async def _collected(self) -> list[Letter[Event]]:
        inputs = {"mailbox": from_bytes(self._mailbox), "collect": TRUE}
        async with asyncio.timeout(SILENCE_S):
            return list(self._unpack(await self._caller.call_decoupled(self._model, inputs, NO_CONTEXT)))

    async def _fail_all(self, error: ProteusError) -> None:
        # Events may lie in an answer that nobody waits for any more: none of these requests can go on.
        self._mailbox = secrets.token_bytes(MAILBOX_KEY_BYTES)
        self._left_behind.update(self._open)
        for arrived in self._open.values():
            arrived.put_nowait(error)
        await asyncio.sleep(RETRY_S)

    async def _stop_left_behind(self) -> None:
        """The model answers again, and whoever waited for these has been told that it does not."""
        keys, self._left_behind = self._left_behind, set()
        for key in keys:
            with suppress(Exception):  # the model computes for nobody then, no worse
                await self.stop(key)

    def _silent(self) -> Unavailable:
        return Unavailable(f"{self._model.name} does not answer", fix=TRY_AGAIN)


async def _all_of(arrived: asyncio.Queue[Event | ProteusError]) -> list[Event]:
    contents = [await arrived.get()]
    while not arrived.empty():
        contents.append(arrived.get_nowait())
    events = list[Event]()
    for content in contents:
        if isinstance(content, ProteusError):
            raise content
        events.append(content)
    return events
