"""Who is sent to a server next, where more is wanted than the servers admit: fair between tenants, by weight and cost.

The queue is that of the doors (docs/decisions/0009); docs/decisions/0026 says why requests wait here and not there.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial

from proteus.admission.admission import Keys, Snapshot
from proteus.admission.ask import Ask
from proteus.admission.gate import Gate
from proteus.admission.ledger import Reservation
from proteus.deployment import Deployment
from proteus.gateway.order import Order, Visit
from proteus.gateway.planning.models import Models
from proteus.gateway.planning.reader import Reader
from proteus.limits import AdmissionLimits, ClassQueue, ClassQueues, DrawAdmission, DrawQueues
from proteus.limits_gateway import Gateway as Settings
from proteus.limits_gateway import GatewayQueue, RoutedPool, ServerAddress

KEYS = Keys(max_queue="[gateway.queue] max_waiting", max_wait_ms="[gateway.queue] max_wait_ms")
LOOK_EACH_S = 0.5
NumServers = Callable[[RoutedPool], int]  # that can be given work
Admissions = Mapping[RoutedPool, AdmissionLimits | DrawAdmission]


class Room:
    """What the servers of some pools, which are the same servers, admit together."""

    def __init__(
        self, admission: AdmissionLimits | DrawAdmission, queue: GatewayQueue, num_servers: Callable[[], int]
    ) -> None:
        self._gate = Gate(_waiting_here(admission, queue), keys=KEYS)
        self._num_servers = num_servers
        self._times = 1

    async def reserve(self, ask: Ask) -> Reservation:
        """Waits for room; whoever is given it releases it. Raises MediaTooLarge, QueueFull or DeadlineExceeded."""
        self.look()
        return await self._gate.reserve(ask)

    def look(self) -> None:
        """How many servers there are. Without one there is the room of one: those who wait come to the router."""
        times = max(1, self._num_servers())
        if times != self._times:
            self._times = times
            self._gate.resize(times)

    def snapshot(self) -> Snapshot:
        return self._gate.snapshot()


class Shares:
    """For one event loop."""

    def __init__(self, settings: Settings, admissions: Admissions, num_servers: NumServers) -> None:
        self._waiting: Counter[RoutedPool] = Counter()
        self._looking: asyncio.Task[None] | None = None
        self.rooms: dict[RoutedPool, Room] = {}
        shared: dict[tuple[bool, frozenset[str]], Room] = {}
        for pool, admission in admissions.items():
            place = isinstance(admission, DrawAdmission), _addresses(settings, pool)
            if place not in shared:
                shared[place] = Room(admission, settings.queue, partial(num_servers, pool))
            self.rooms[pool] = shared[place]

    async def start(self) -> None:
        self._looking = asyncio.create_task(self._look(), name="shares")

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            with suppress(asyncio.CancelledError):
                await self._looking
            self._looking = None

    @asynccontextmanager
    async def turn(self, visit: Visit, order: Order) -> AsyncIterator[Reservation]:
        """Waits for room, which is stage `queue`, and holds it for the block.

        Raises MediaTooLarge, QueueFull or DeadlineExceeded instead of entering the block.
        """
        pool = order.routed_pool
        self._waiting[pool] += 1
        try:
            with visit.watch.stage("queue"):
                reservation = await self.rooms[pool].reserve(_ask(order))
        finally:
            self._waiting[pool] -= 1
        with reservation:
            yield reservation

    async def _look(self) -> None:
        """A server that is back has room for those who wait, before any of the others ends one."""
        while True:
            await asyncio.sleep(LOOK_EACH_S)
            for room in self.rooms.values():
                room.look()

    def figures(self) -> Mapping[RoutedPool, int]:
        """Requests that wait, by pool."""
        return {pool: self._waiting[pool] for pool in self.rooms}


def admissions_of(deployment: Deployment, models: Models) -> Admissions:
    """What one server of each pool admits."""
    admissions: dict[RoutedPool, AdmissionLimits | DrawAdmission] = {}
    if deployment.reads:
        admissions |= {"text": deployment.admission, "picture": deployment.admission}
    if deployment.draws:
        admissions["draw"] = deployment.drawing.limits.admission
    for reader in models.readers.values():
        if isinstance(reader, Reader) and reader.light:
            admissions["light"] = reader.limits.admission
    return admissions


def without_pictures(reservation: Reservation) -> None:
    """A server that has begun to answer has encoded every picture: the next may come."""
    if reservation.vector.decoded_pixels:
        reservation.shrink(reservation.vector.without_decoding())


def _ask(order: Order) -> Ask:
    return Ask(
        vector=order.resources,
        latency_class=order.latency_class,
        tenant=order.tenant.name,
        model=order.model,
        deadline_s=order.deadline_s,
        weight=order.tenant.weight,
    )


def _waiting_here(admission: AdmissionLimits | DrawAdmission, queue: GatewayQueue) -> AdmissionLimits | DrawAdmission:
    """What a server admits, with the gateway's own bounds of waiting."""

    def bounded(one: ClassQueue) -> ClassQueue:
        return one.model_copy(update={"max_queue": queue.max_waiting})

    queues: ClassQueues | DrawQueues
    if isinstance(admission, DrawAdmission):
        queues = DrawQueues(media=bounded(admission.queues.media), batch=bounded(admission.queues.batch))
    else:
        given = admission.queues
        queues = ClassQueues(text=bounded(given.text), media=bounded(given.media), batch=bounded(given.batch))
    return admission.model_copy(update={"queues": queues, "max_wait_ms": queue.max_wait_ms})


def _addresses(settings: Settings, pool: RoutedPool) -> frozenset[str]:
    servers: dict[str, list[ServerAddress]] = dict(settings.pools.named())
    if settings.light is not None:
        servers["light"] = settings.light.servers
    return frozenset(server.grpc for server in servers[pool])
