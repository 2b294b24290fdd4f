"""Pictures encoded by other servers: `image_tokens` over gRPC, on whichever of them has the least to do.

The addresses that the name stands for are looked up again and again, so servers may come and go. To encode a picture
changes nothing anywhere: one that a server failed to answer is sent once more, to another where there is one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from proteus.backend.failures import TRY_AGAIN
from proteus.backend.fleet import Context, EncodedPicture
from proteus.backend.remote_figures import EncoderPoolFigures
from proteus.backend.remote_server import Deadline, Metadata, RemoteServer, Wanted
from proteus.backend.remote_wire import infer_request, read_picture
from proteus.closing import close_in
from proteus.errors import DeadlineExceeded, InternalError, ProteusError, Unavailable
from proteus.limits_gpu import EncoderPool
from proteus.lookup import addresses

LOOK_UP_S = 5.0  # until the name is looked up again, and how long that may take
CLOSE_S = 2.0
LATE_S = 1.0  # that an end by deadline may come
CANCELLED = "cancelled"
Addresses = frozenset[str]
Answered = TypeVar("Answered")

log = logging.getLogger(__name__)


class RemoteEncoders:
    """For one event loop; nothing is connected before the first picture."""

    def __init__(self, limits: EncoderPool, wanted: Wanted) -> None:
        self._limits, self._wanted = limits, wanted
        self._places = asyncio.Semaphore(limits.max_at_once)
        self._servers: dict[str, RemoteServer] = {}
        self._encoder = ""  # as it was heard last
        self._looked_up_s = float("-inf")
        self._looking_up: asyncio.Task[None] | None = None
        self._retiring: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._figures = EncoderPoolFigures(max_at_once=limits.max_at_once)

    def figures(self) -> EncoderPoolFigures:
        self._figures.known = len(self._servers)
        self._figures.connected = sum(server.is_connected() for server in self._servers.values())
        return self._figures

    async def encoder(self) -> str:
        """Names what encodes, as it was heard last: also while no server answers. Raises ProteusError before that."""
        if not self._encoder:
            deadline = self._deadline(None)
            self._encoder = await self._on_either(deadline, lambda server: server.encoder(deadline))
        return self._encoder

    async def image_tokens(
        self, picture: bytes, scope_key: bytes, context: Context, target_px: tuple[int, int] | None
    ) -> EncodedPicture:
        """As in Fleet."""
        outcome = CANCELLED
        begun_s = asyncio.get_running_loop().time()
        own_end_s = begun_s + context.timeout_us / 1e6 if context.timeout_us else None
        try:
            async with self._place(own_end_s):
                deadline = self._deadline(own_end_s)
                timeout_us = int(deadline.left_s() * 1e6)
                request = infer_request(picture, scope_key, target_px, context, timeout_us)
                encoded = await self._on_either(deadline, lambda server: self._ask(server, request, context, deadline))
            outcome = "encoded"
        except ProteusError as error:
            outcome = error.code
            raise
        except Exception:
            outcome = InternalError.code
            raise
        finally:
            self._figures.outcomes[outcome] += 1
        return encoded

    async def aclose(self) -> None:
        """At once, whatever is under way."""
        if self._looking_up is not None:
            self._looking_up.cancel()
        for retiring in self._retiring:
            retiring.cancel()
        servers, self._servers = self._servers, {}
        await asyncio.gather(*(server.close() for server in servers.values()))
        await asyncio.gather(*self._retiring, return_exceptions=True)

    def close(self) -> None:
        """As `aclose`, from another thread than the loop's; where that has ended, so have the connections."""
        close_in(self._loop, self.aclose, CLOSE_S)

    @asynccontextmanager
    async def _place(self, end_s: float | None) -> AsyncIterator[None]:
        """One of those under way at once; whoever waits for it waits no longer than its request may."""
        self._figures.waiting += 1
        try:
            async with asyncio.timeout_at(end_s):
                await self._places.acquire()
        except TimeoutError as error:
            raise DeadlineExceeded(
                "a picture was not sent to an encoder server in time",
                limit=f"[encoder_pool] max_at_once = {self._limits.max_at_once}, and Triton's timeout of the request",
                fix="allow more time, or try again later",
            ) from error
        finally:
            self._figures.waiting -= 1
        self._figures.under_way += 1
        try:
            yield
        finally:
            self._figures.under_way -= 1
            self._places.release()

    def _deadline(self, own_end_s: float | None) -> Deadline:
        pool_end_s = asyncio.get_running_loop().time() + self._limits.timeout_ms / 1e3
        if own_end_s is not None and own_end_s < pool_end_s:
            return Deadline(own_end_s, "Triton's timeout of the request")
        return Deadline(pool_end_s, f"[encoder_pool] timeout_ms = {self._limits.timeout_ms}")

    async def _on_either(self, deadline: Deadline, ask: Callable[[RemoteServer], Awaitable[Answered]]) -> Answered:
        """A server that does not answer costs one more question: to another, to itself where there is no other."""
        first = await self._least_busy(deadline)
        try:
            with first.busy():
                return await ask(first)
        except Unavailable:
            self._figures.retries += 1
        await self._look_up(deadline, again=True)  # after an hour without pictures, all may be other ones
        second = await self._least_busy(deadline, but=first)
        with second.busy():
            return await ask(second)

    async def _ask(self, server: RemoteServer, request: object, context: Context, deadline: Deadline) -> EncodedPicture:
        encoder = await server.encoder(deadline)
        sent_ns = time.monotonic_ns()
        response = await server.infer(request, _metadata(context), deadline)
        received_ns = time.monotonic_ns()
        try:
            encoded = read_picture(response, sent_ns, received_ns, encoder)
        except InternalError:
            log.exception("encoder server %s answered against the contract", server.target)
            raise
        self._encoder = encoder
        self._figures.seconds += (received_ns - sent_ns) / 1e9
        return encoded

    async def _least_busy(self, deadline: Deadline, *, but: RemoteServer | None = None) -> RemoteServer:
        await self._look_up(deadline)
        servers = list(self._servers.values())
        if not servers:
            raise Unavailable("no encoder server is found", fix=TRY_AGAIN)
        return min([server for server in servers if server is not but] or servers, key=RemoteServer.order)

    async def _look_up(self, deadline: Deadline, *, again: bool = False) -> None:
        """Waits for it only where no server is known, or those that are may be none any more."""
        self._loop = asyncio.get_running_loop()
        is_old = time.monotonic() - self._looked_up_s >= LOOK_UP_S
        if self._looking_up is None and (is_old or again):
            self._looking_up = asyncio.create_task(self._find_servers())
        if self._looking_up is not None and (again or not self._servers):
            await asyncio.wait([self._looking_up], timeout=deadline.left_s())

    async def _find_servers(self) -> None:
        try:
            async with asyncio.timeout(LOOK_UP_S):
                targets = await _targets(self._limits.url)
            self._follow(targets)
        except (OSError, TimeoutError, UnicodeError) as error:  # the last of a name that is none
            log.warning("encoder servers at %s are not found: %r", self._limits.url, error)
        finally:
            self._looked_up_s, self._looking_up = time.monotonic(), None

    def _follow(self, targets: Addresses) -> None:
        """Connect to those that are new; those that are gone end what they have under way."""
        for target in self._servers.keys() - targets:
            retiring = asyncio.create_task(self._retire(self._servers.pop(target)))
            self._retiring.add(retiring)
            retiring.add_done_callback(self._retiring.discard)
        for target in sorted(targets - self._servers.keys()):
            self._servers[target] = RemoteServer(target, self._wanted)

    async def _retire(self, server: RemoteServer) -> None:
        try:
            await asyncio.sleep(self._limits.timeout_ms / 1e3 + LATE_S)  # nothing that it was asked takes longer
        finally:
            await server.close()


async def _targets(url: str) -> Addresses:
    """gRPC's names for the addresses behind `host:port`; of a host with both kinds, those of IPv4."""
    host, _, port = url.rpartition(":")
    found = await addresses(host)
    return frozenset(f"{'ipv6' if one.startswith('[') else 'ipv4'}:{one}:{port}" for one in found)


def _metadata(context: Context) -> Metadata:
    trace = context.trace
    return () if trace is None else (("traceparent", f"00-{trace.trace_id}-{trace.root_id}-01"),)
