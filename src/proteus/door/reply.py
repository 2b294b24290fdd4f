"""Where an answer goes, and whether anybody still wants it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

CANCEL_POLL_S = 0.1  # between two looks whether a client is still there …
POLLS_PER_S = 640  # … and no more looks than these at all clients together: each one stops the event loop
Done = TypeVar("Done")


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One event of the stream."""

    text: str = ""
    token_ids: tuple[int, ...] = ()
    index: int = 0  # of the answer it belongs to
    logprobs: str | None = None  # JSON, where asked for
    report: str | None = None  # JSON, with the last piece of the stream, which ends it


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawPiece:
    """One response of the stream that draws: a preview or a picture with its event, or the report."""

    event: str | None = None  # JSON
    image: bytes | None = None  # encoded, with an event
    report: str | None = None  # JSON, with the last piece of the stream, which ends it


class Waiting(Protocol):
    def is_cancelled(self) -> bool: ...


class Reply(Waiting, Protocol):
    def send(self, piece: Piece) -> None: ...


class DrawReply(Waiting, Protocol):
    def send(self, piece: DrawPiece) -> None: ...


def poll_s(num_open: int) -> float:
    """Between two looks for a client, with so many requests open."""
    return max(CANCEL_POLL_S, num_open / POLLS_PER_S)


class Listener:
    """Who waits for an answer: gone once the client has left, or once the request was stopped by its name."""

    def __init__(self, reply: Waiting, poll_s: Callable[[], float]) -> None:
        self._reply, self._poll_s = reply, poll_s
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """The answer is not wanted any more, whether or not the client is there."""
        self._stopped.set()

    async def gone(self) -> None:
        """Returns when nobody wants the answer any more. Triton tells nothing of a cancel: it has to be asked."""
        while not self._stopped.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._poll_s()):
                    await self._stopped.wait()
            if self._reply.is_cancelled():
                return

    async def unless_gone(self, work: Coroutine[Any, Any, Done]) -> Done | None:
        """What `work` gives, or None when it was not wanted any more; the work is ended then."""
        leaving = asyncio.create_task(self.gone())
        try:
            return await unless(leaving, work)
        finally:
            leaving.cancel()


async def unless(leaving: asyncio.Task[None], work: Coroutine[Any, Any, Done]) -> Done | None:
    """What `work` gives, or None when `leaving` was over before; the work is ended then."""
    working = asyncio.create_task(work)
    try:
        done, _ = await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if leaving in done:
            leaving.result()  # to look for the client may have failed
    finally:
        if not working.done():
            working.cancel()
            await asyncio.wait({working})
    return None if working.cancelled() else working.result()
