"""Which server answers an order: the one of its pool with the least outstanding cost; another, where that fails."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import aclosing
from typing import Any

from proteus.client.wire import Model, replace_field, stamp
from proteus.cost.vector import ResourceVector
from proteus.deployment import Deployment
from proteus.errors import DeadlineExceeded, Unavailable
from proteus.gateway.order import Order, Visit
from proteus.gateway.routing.pools import Pools
from proteus.gateway.routing.sending import (
    AnsweredUnavailable,
    Broke,
    Died,
    HoldingRoom,
    ServerFailed,
    WasFull,
    held_back,
    messages_of,
    too_late,
)
from proteus.gateway.routing.servers import WHOLE, ServerFigures, TritonServer
from proteus.limits import Resources
from proteus.limits_gateway import Gateway as Settings
from proteus.limits_gateway import RoutedPool

Capacities = Mapping[Model, Resources]
DOORS_OF: Mapping[Model, Callable[[Deployment], bool]] = {
    "chat": lambda deployment: deployment.reads,
    "draw": lambda deployment: deployment.draws,
}


class Router:
    """For one event loop."""

    def __init__(self, deployment: Deployment, settings: Settings) -> None:
        self._routing = settings.routing
        self._capacities = capacities_of(deployment)
        self._pools = Pools(settings, [door for door, there in DOORS_OF.items() if there(deployment)])
        self._room = HoldingRoom()
        self._turns = 0

    async def start(self) -> None:
        """Ends when every server was asked once whether it is ready."""
        await self._pools.start()

    async def close(self) -> None:
        """At once, whatever is open."""
        await self._pools.close()

    def servers_of(self, pool: RoutedPool) -> tuple[TritonServer, ...]:
        """Those that can be given work."""
        return tuple(self._pools.of(pool))

    def ready(self, pool: RoutedPool) -> bool:
        return any(True for _ in self._pools.of(pool))

    def check(self, order: Order) -> None:
        """Raises Unavailable where no server could be given it now: then nobody is to wait."""
        if not self.ready(order.routed_pool):
            raise self._down(order.routed_pool)

    def figures(self) -> tuple[ServerFigures, ...]:
        """Of every server in each of its pools."""
        return tuple(self._pools.figures())

    def retries(self) -> Mapping[str, int]:
        """By the server that failed: how often another was asked."""
        return self._pools.retries()

    async def messages(self, visit: Visit, order: Order) -> AsyncGenerator[Any, None]:
        """Up to the report; none of them holds an error. Closing it stops the request at its server at once.

        Raises ProteusError or ClientError. What the caller was given is taken for sent to the client: from then on no
        other server is asked. Of an order that is `whole`, nothing is given before the report is there.
        """
        document = order.message.raw_input_contents[0]
        tried: list[TritonServer] = []
        failures: list[ServerFailed] = []
        while (server := self._next(order.routed_pool, tried)) is not None:
            if failures:
                tried[-1].retries += 1
            tried.append(server)
            visit.retries = len(failures)
            breaks, was_given = server.breaks, False
            try:
                async with aclosing(self._send(server, visit, order, document)) as messages:
                    async for message in messages:
                        was_given = True
                        yield message
                return
            except ServerFailed as failed:
                failures.append(failed)
                _tell(server, failed, breaks)
            if was_given or not self._may_try_again(failures):
                break
        raise failures[-1].error if failures else self._down(order.routed_pool)

    async def _send(
        self, server: TritonServer, visit: Visit, order: Order, document: bytes
    ) -> AsyncGenerator[Any, None]:
        left_s = visit.arrived_s + self._routing.answer_timeout_ms / 1e3 - time.monotonic()
        if left_s <= 0:
            raise too_late()
        _address(order, document)
        visit.server = server.address
        with server.busy(order.routed_pool, cost_of(order.resources, self._capacities[order.door])):
            sent = messages_of(server, order, timeout_s=left_s, traceparent=visit.traceparent)
            async with aclosing(sent), aclosing(held_back(sent, self._room) if order.whole else sent) as messages:
                async for message in messages:
                    yield message

    def _next(self, pool: RoutedPool, tried: Collection[TritonServer]) -> TritonServer | None:
        server = min((one for one in self._pools.of(pool) if one not in tried), key=TritonServer.rank, default=None)
        if server is not None:
            self._turns += 1
            server.turn = self._turns
        return server

    def _may_try_again(self, failures: Collection[ServerFailed]) -> bool:
        """Full servers are asked once more and no oftener: where two are full, the third is likely to be.

        Nor is a third that may die: what two died of is likely to be the request.
        """
        full, died = (sum(isinstance(one, kind) for one in failures) for kind in (WasFull, Died))
        return len(failures) <= self._routing.max_retries and full <= 1 and died <= 1

    def _down(self, pool: RoutedPool) -> Unavailable:
        again_s = self._routing.suspect_ms / 1e3
        return Unavailable(f"no server of the pool '{pool}' is ready", fix=f"try again in {again_s:.1f} s")


def capacities_of(deployment: Deployment) -> Capacities:
    """By which orders for the same server are compared."""
    capacities: dict[Model, Resources] = {"chat": deployment.admission.capacity}
    if deployment.draw is not None:
        capacities["draw"] = deployment.draw.admission.capacity
    return capacities


def cost_of(vector: ResourceVector, capacity: Resources) -> int:
    """The dominant share: the largest part that it takes of any resource, where WHOLE is all that there is."""
    return max((getattr(vector, name) * WHOLE // limit for name, limit in capacity.named()), default=0)


def _tell(server: TritonServer, failed: ServerFailed, breaks: int) -> None:
    match failed:
        case Broke():
            server.broke(breaks)
        case AnsweredUnavailable():
            server.answered_unavailable()


def _address(order: Order, document: bytes) -> None:
    """Says what is left of its deadline now and, to the door that wants to know, that it is sent now.

    Raises DeadlineExceeded.
    """
    order.message.raw_input_contents[0] = document
    if order.deadline_s is not None:
        left_ms = int((order.deadline_s - time.monotonic()) * 1e3)
        if left_ms < 1:
            raise DeadlineExceeded("not started in time", limit="deadline_ms of the request", fix="allow more time")
        replace_field(order.message, "deadline_ms", left_ms)
    if order.door == "chat":
        stamp(order.message)
