"""The nouns of the gateway: who asks, what is sent to a server, and what is known of a request while it is here."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from proteus.client.wire import Model
from proteus.cost.vector import ResourceVector
from proteus.door.seats import Seat
from proteus.limits import LatencyClass
from proteus.limits_gateway import PoolName, RoutedPool
from proteus.stages import Stopwatch

if TYPE_CHECKING:
    from proteus.gateway.tenancy.budgets import Charge

SERVED, CLIENT_GONE = "served", "client_gone"  # outcomes beside the codes of errors


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """Whose requests they are. `None` in a limit is no limit."""

    name: str
    key: str = ""  # name of the one that was shown
    cache_scope: str
    models: frozenset[str] | None = None  # allowed; None: all
    weight: int = 1  # of its share, while others want as well
    in_flight: Mapping[str, int] = field(default_factory=dict)  # resource of the vector -> held at once
    per_second: Mapping[str, float] = field(default_factory=dict)  # resource -> used in a second, on average
    burst_s: float = 10.0  # seconds of `per_second` that may be used at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A request as a server gets it, its exact cost known; nothing is sent yet.

    The document names tenant, cache scope and request id; `sent` is stamped when it goes.
    """

    message: Any  # the `ModelInferRequest` for `door`
    door: Model
    model: str  # as clients name it
    pool: PoolName
    light: bool = False  # goes to the servers of the light model
    tenant: Tenant
    request_id: str
    latency_class: LatencyClass
    resources: ResourceVector
    price: float  # the most that it can come to, in [gateway.prices] currency
    deadline_s: float | None = None  # to be started, on the monotonic clock
    whole: bool = False  # nothing is sent to the client before all of it is there

    @property
    def routed_pool(self) -> RoutedPool:
        return "light" if self.light else self.pool


@dataclass(slots=True, kw_only=True)
class Visit:
    """One HTTP request, filled in on its way; the metering log is written from it."""

    path: str
    address: str  # of the peer
    request_id: str = field(default_factory=lambda: secrets.token_hex(16))
    watch: Stopwatch = field(default_factory=Stopwatch)  # the gateway's own stages
    arrived_s: float = field(default_factory=time.monotonic)
    traceparent: str = ""  # as the client sent it
    tenant: Tenant | None = None
    seat: Seat | None = None  # that holds the bytes of the body, and what is fetched
    order: Order | None = None
    charge: Charge | None = None  # on its tenant's budget
    server: str = ""  # that it was sent to last; none: it was not
    retries: int = 0
    report: Mapping[str, Any] | None = None  # the server's, as docs/contract.md tells it
    price: float = 0.0  # of what was used
    moderation: str = ""  # verdicts, where anything but allowed
    checks: dict[str, dict[str, str]] = field(default_factory=dict)  # the worst verdict of those `before` and `after`
    user_hash: str = ""  # of the user that the tenant names; empty: none
    outcome: str = SERVED
    status: int = 0

    @property
    def whose(self) -> Tenant:
        """Of a request that was let in."""
        if self.tenant is None:
            raise LookupError("the request has no tenant yet")
        return self.tenant

    @property
    def own_seat(self) -> Seat:
        """Of a request that was let in."""
        if self.seat is None:
            raise LookupError("the request has no seat yet")
        return self.seat

    def reported(self, report: Mapping[str, Any]) -> None:
        """What the server says of it: before the answer is sent, so that the next request finds its budget settled."""
        self.report = report
        if self.charge is not None:
            self.charge.reported(report)

    def deadline_s(self, deadline_ms: int | None) -> float | None:
        """Of a request that is to be started within `deadline_ms` of its arrival, on the monotonic clock."""
        return None if deadline_ms is None else self.arrived_s + deadline_ms / 1e3


def left_ms(deadline_s: float | None) -> dict[str, int]:
    """What is left until then, as the request document says it."""
    if deadline_s is None:
        return {}
    return {"deadline_ms": max(1, round((deadline_s - time.monotonic()) * 1e3))}
