"""One Triton server: its connection, whether it can be given work, and how much of it it has."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from random import uniform
from typing import Any

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2_grpc

from proteus.client.channel import CHANNEL_OPTIONS, stream_of
from proteus.client.wire import Model, stop_request
from proteus.gateway.routing.health import Told, ask_health_port, ask_triton, why_not
from proteus.limits_gateway import GatewayRouting, RoutedPool

DOORS: Mapping[RoutedPool, Model] = {"text": "chat", "picture": "chat", "light": "chat", "draw": "draw"}
OPTIONS = (*CHANNEL_OPTIONS, ("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1))
CONNECTED = grpc.ChannelConnectivity.READY
LOOK_S = 0.02  # between two looks at a connection that is being made
PAUSE_S = 0.05  # at least, between two questions to a server
STOP_S = 2.0  # that a server may take to hear of a stop
JITTER = 0.1  # of the interval: gateways that were started together do not ask together
LOST_S = 30.0  # without any sign of life: what it has is taken for lost
MISSES = 2  # questions in a row without an answer: a server that is only busy is not taken for dead

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFigures:
    """Of one server in one pool."""

    server: str
    pool: RoutedPool
    up: bool
    why: str  # it is not up
    outstanding_cost: float  # parts of a server's capacity; over 1 is more than it admits at once
    outstanding_requests: int


class TritonServer:
    """At one address, for one event loop, which must be running. It is up once its health has said so.

    A server whose connection broke is down until its health, asked after that, says that it is ready. One that broke,
    or answered `unavailable`, is `doubtful` for `suspect_ms`: others go first. Nobody can take a server away from
    others by making it answer `unavailable`.
    """

    def __init__(self, address: str, health: str | None, routing: GatewayRouting) -> None:
        self.address, self.pools = address, frozenset[RoutedPool]()
        self.turn = 0  # of its last request, counted over all servers
        self.retries = 0  # requests that it failed, given to another server
        self._health, self._routing = health, routing
        self._channel = grpc.aio.insecure_channel(address, options=OPTIONS)
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self.stream = stream_of(self._channel)
        self._costs: Counter[RoutedPool] = Counter()  # whole parts: sums of them end at nothing again
        self._requests: Counter[RoutedPool] = Counter()
        self._up, self._why, self._misses = False, "it was not asked yet", 0
        self._breaks = 0
        self._doubtful_until_s = 0.0
        self._ask_now = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._calls: set[Any] = set()
        self._heard_s = time.monotonic()
        self._stops: set[asyncio.Task[None]] = set()
        self._closing = False
        self._nothing_open = asyncio.Event()
        self._nothing_open.set()

    @property
    def up(self) -> bool:
        return self._up

    @property
    def is_open(self) -> bool:
        """Until it is closed."""
        return not self._closing

    @property
    def breaks(self) -> int:
        """How often its connection broke; what was sent before the last time says nothing about now."""
        return self._breaks

    def rank(self) -> tuple[bool, int, int, int]:
        """The least one is next."""
        doubtful = time.monotonic() < self._doubtful_until_s
        return doubtful, self._costs.total(), self._requests.total(), self.turn

    @contextmanager
    def busy(self, pool: RoutedPool, cost: int) -> Iterator[None]:
        """From the choice of this server on."""
        self._costs[pool] += cost
        self._requests[pool] += 1
        self._nothing_open.clear()
        try:
            yield
        finally:
            self._costs[pool] -= cost
            self._requests[pool] -= 1
            if not self._requests.total():
                self._nothing_open.set()

    @contextmanager
    def calling(self, call: Any) -> Iterator[None]:
        """The call is cancelled when there is no sign of life: its connection may look well for minutes."""
        self._calls.add(call)
        self.heard()
        try:
            yield
        finally:
            self._calls.discard(call)

    def heard(self) -> None:
        """It lives: a message came."""
        self._heard_s = time.monotonic()

    def broke(self, breaks: int) -> None:
        """The connection of what was sent after so many breaks; streams that break together break it once."""
        if breaks == self._breaks:
            self._breaks += 1
            self._now(Told(ready=False, why="its connection broke"))
            self.answered_unavailable()

    def answered_unavailable(self) -> None:
        self._doubtful_until_s = time.monotonic() + self._routing.suspect_ms / 1e3
        self._ask_now.set()

    def stop(self, door: Model, request_id: str, cache_scope: str, tenant: str) -> None:
        """Tell it at once that nobody waits for this request any more; nobody waits for the telling either."""
        if self._closing:
            return
        request = stop_request(door, request_id, cache_scope, tenant)
        stopping = asyncio.create_task(self._tell(request))
        self._stops.add(stopping)
        stopping.add_done_callback(self._stops.discard)

    async def look(self) -> None:
        """Asks for its health."""
        breaks, timeout_s = self._breaks, self._routing.health_timeout_ms / 1e3
        told = Told(ready=False, why="it does not say whether it is ready")
        missed = False
        try:
            async with asyncio.timeout(timeout_s):
                told = await self._ask(timeout_s)
            self.heard()
        except (TimeoutError, OSError) as error:
            missed = isinstance(error, TimeoutError)
        except grpc.RpcError as error:
            told = Told(ready=False, why=why_not(error))
        except Exception:
            log.exception("server %s could not be asked for its health", self.address)
            told = Told(ready=False, why="it could not be asked; the gateway's log tells why")
        self._misses = self._misses + 1 if missed else 0
        if told.ready and breaks != self._breaks:
            return  # said before it broke
        if not missed or self._misses >= MISSES:
            self._now(told)
        if time.monotonic() - self._heard_s > LOST_S:
            for call in self._calls:
                call.cancel()

    def watch(self) -> None:
        """From now on, until it is closed."""
        self._watching = asyncio.create_task(self._watch())

    def figures(self) -> Iterator[ServerFigures]:
        for pool in sorted(self.pools | {pool for pool, count in self._requests.items() if count}):
            yield ServerFigures(
                server=self.address,
                pool=pool,
                up=self._up,
                why=self._why,
                outstanding_cost=self._costs[pool] / WHOLE,
                outstanding_requests=self._requests[pool],
            )

    async def retire(self) -> None:
        """Ends when what it has has ended."""
        await self._nothing_open.wait()
        await self.close()

    async def close(self) -> None:
        """At once, whatever is under way; stops that were begun are told first."""
        self._closing, self._up = True, False
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching
        await asyncio.gather(*self._stops)
        await self._channel.close()

    async def _watch(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(PAUSE_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._routing.health_interval_ms / 1e3 * uniform(1 - JITTER, 1 + JITTER)):
                    await self._ask_now.wait()
            self._ask_now.clear()

    async def _ask(self, timeout_s: float) -> Told:
        if self._health is None:
            return await ask_triton(self.stub, {DOORS[pool] for pool in self.pools}, timeout_s)
        told = await ask_health_port(self._health)
        # What is not connected yet would fail its first request, for gRPC waits between two tries.
        while told.ready and self._channel.get_state(try_to_connect=True) is not CONNECTED:
            await asyncio.sleep(LOOK_S)
        return told

    async def _tell(self, request: Any) -> None:
        call = self.stream(request, timeout=STOP_S)
        with suppress(grpc.RpcError, TimeoutError):
            async with asyncio.timeout(STOP_S):  # gRPC tells the end of its time late where a server reads nothing
                async for _ in call:
                    pass

    def _now(self, told: Told) -> None:
        if told.ready is not self._up:
            log.warning("server %s is %s%s", self.address, "up" if told.ready else "down: ", told.why)
        self._up, self._why = told.ready, told.why


WHOLE = 10**9  # the cost of a server's whole capacity
