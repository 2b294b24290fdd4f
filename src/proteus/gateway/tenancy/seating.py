"""How many requests are open and how many bytes they hold, so that no tenant takes the last place of the others.

A tenant may hold as much as is still free (dynamic thresholds: Choudhury and Hahne, IEEE/ACM ToN 1998): alone half of
all, two of them a third each, and a quiet one always finds room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from proteus.door.seats import Seat, Seats
from proteus.errors import QueueFull
from proteus.gateway.order import Tenant
from proteus.limits_gateway import GatewayQueue

TABLE = "gateway.queue"


class Seating:
    """For one event loop. Without tenants, everybody shares all there is."""

    def __init__(self, limits: GatewayQueue, *, shared_fairly: bool) -> None:
        self._limits, self._shared_fairly = limits, shared_fairly
        self._seats = Seats(max_requests=limits.max_open_requests, max_bytes=limits.max_open_bytes, table=TABLE)
        self._requests: Counter[str] = Counter()  # by tenant
        self._bytes: Counter[str] = Counter()

    @contextmanager
    def take(self, num_bytes: int, tenant: Tenant) -> Iterator[Seat]:
        """A seat until the block ends. Raises QueueFull or MediaTooLarge, as its `hold` does."""
        most = self._limits.max_open_requests
        free = most - self._seats.taken
        if free <= 0 or (self._shared_fairly and self._requests[tenant.name] >= free):
            raise QueueFull(
                f"{self._seats.taken:,} requests are open, {self._requests[tenant.name]:,} of them of {tenant.name}",
                limit=f"[{TABLE}] max_open_requests = {most:,}",
            )
        self._requests[tenant.name] += 1
        try:
            with self._seats.take(0) as taken:
                seat = _TenantSeat(self, self._seats, taken, tenant.name)
                try:
                    seat.hold(num_bytes)
                    yield seat
                finally:
                    self._bytes[tenant.name] -= seat.held_bytes
        finally:
            self._requests[tenant.name] -= 1

    def held(self, tenant: str, num_bytes: int) -> None:
        self._bytes[tenant] += num_bytes

    def check(self, tenant: str, num_bytes: int) -> None:
        """Raises QueueFull where a tenant would hold more than it leaves to the others."""
        own, most = self._bytes[tenant] + num_bytes, self._limits.max_open_bytes
        if self._shared_fairly and self._requests[tenant] > 1 and own > most - self._seats.held_bytes:
            raise QueueFull(
                f"the open requests hold {self._seats.held_bytes:,} bytes, {self._bytes[tenant]:,} of them of {tenant}",
                limit=f"[{TABLE}] max_open_bytes = {most:,}",
            )

    def figures(self) -> Mapping[str, int]:
        return {"open_requests": self._seats.taken, "open_bytes": self._seats.held_bytes}


class _TenantSeat(Seat):
    def __init__(self, seating: Seating, seats: Seats, taken: Seat, tenant: str) -> None:
        super().__init__(seats)
        self._seating, self._taken, self._tenant = seating, taken, tenant

    def hold(self, num_bytes: int) -> None:
        self._seating.check(self._tenant, num_bytes)
        self._taken.hold(num_bytes)
        self.held_bytes = self._taken.held_bytes
        self._seating.held(self._tenant, num_bytes)
