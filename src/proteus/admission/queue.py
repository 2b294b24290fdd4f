"""The waiting requests of one latency class: first in, first out within a tenant, fair by cost between tenants.

Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996) on the dominant share: the head of each tenant has a start
tag, the least goes first, and being admitted moves its tenant's next tag on by cost / weight. Knows no ledger.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict, defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from proteus.admission.ask import Ask
from proteus.admission.heap import Heap
from proteus.admission.ledger import Reservation
from proteus.errors import ProteusError


class Queued(Hashable, Protocol):
    """What a queue knows of one that waits in it."""

    arrived_v: float  # virtual time of the queue on arrival, set by it: the start tag is never less

    @property
    def tenant(self) -> str: ...

    @property
    def number(self) -> int: ...  # in order of arrival

    @property
    def cost(self) -> float: ...

    @property
    def needs(self) -> frozenset[str]: ...


Item = TypeVar("Item", bound=Queued)


@dataclass(slots=True, kw_only=True, eq=False)
class Ticket:
    """One ask until it is settled: it has a reservation, or an error, or it was cancelled."""

    ask: Ask
    number: int  # in order of arrival
    cost: float  # dominant share
    needs: frozenset[str]  # limited resources it takes any of
    arrived_s: float
    expires_s: float
    waiting: bool = True
    reservation: Reservation | None = None
    error: ProteusError | None = None
    arrived_v: float = 0.0
    awaits: set[str] = field(default_factory=set)  # resources it was short of while it was first of all

    @property
    def tenant(self) -> str:
        return self.ask.tenant


@dataclass(slots=True, eq=False)
class _Tenant(Generic[Item]):
    name: str
    weight: int = 1  # of its share, while it waits
    finish_v: float = 0.0  # tag at which what was admitted of it is paid for
    tickets: OrderedDict[Item, None] = field(default_factory=OrderedDict)  # unlike dict, finds its first in O(1)

    @property
    def head(self) -> Item:
        return next(iter(self.tickets))


class _Lengths(Generic[Item]):
    """Tenants by how many tickets they have; every operation is O(1), because lengths change by one."""

    def __init__(self) -> None:
        self._with: defaultdict[int, OrderedDict[_Tenant[Item], None]] = defaultdict(OrderedDict)
        self._most = 0
        self.weight = 0  # of all tenants that have any

    def move(self, tenant: _Tenant[Item], before: int, after: int) -> None:
        if before:
            del self._with[before][tenant]
            if not self._with[before]:
                del self._with[before]
        if after:
            self._with[after][tenant] = None
        self.weight += tenant.weight * (bool(after) - bool(before))
        if after > self._most or self._most not in self._with:
            self._most = after

    def longest(self) -> _Tenant[Item]:
        """One of those with most tickets."""
        return next(iter(self._with[self._most]))


class FairQueue(Generic[Item]):
    """Heads are kept apart by the set of resources they need: if the first of a set has to wait, so have the others,
    because each takes some of what it waits for. One look at each set, and there are few, finds whoever may go.
    """

    def __init__(self) -> None:
        self._size = 0
        self._virtual = 0.0
        self._tenants: dict[str, _Tenant[Item]] = {}  # those that wait, and those not yet paid for
        self._paid = Heap[_Tenant[Item]]()  # those that do not wait, by finish tag
        self._numbers = itertools.count()
        self._heads: defaultdict[frozenset[str], Heap[Item]] = defaultdict(Heap)
        self._by_length = _Lengths[Item]()

    def __len__(self) -> int:
        return self._size

    @property
    def num_tenants(self) -> int:
        """Tenants kept in memory."""
        return len(self._tenants)

    def firsts(self) -> Iterator[tuple[float, Item]]:
        """(start tag, ticket) of the first head of each set of needs, in no order."""
        for heads in self._heads.values():  # none is empty
            if (ticket := heads.first()) is not None:
                yield heads.order_of(ticket), ticket

    def add(self, ticket: Item, *, weight: int = 1) -> None:
        """Puts `ticket` behind the others of its tenant, whose `weight` is this from now on."""
        tenant = self._tenants.setdefault(ticket.tenant, _Tenant(ticket.tenant))
        if tenant.tickets:
            self._by_length.weight += weight - tenant.weight
        tenant.weight = weight
        ticket.arrived_v = self._virtual
        tenant.tickets[ticket] = None
        self._size += 1
        self._by_length.move(tenant, len(tenant.tickets) - 1, len(tenant.tickets))
        if len(tenant.tickets) == 1:
            self._paid.discard(tenant)
            self._add_head(tenant)

    def remove(self, ticket: Item) -> None:
        """Takes out a ticket that was not admitted: its tenant pays nothing."""
        self._take(ticket)
        self._forget()

    def admit(self, ticket: Item) -> None:
        """Takes out a head and charges its tenant.

        Virtual time moves on by at least cost / weight of all waiting tenants, so that tenants that keep coming new,
        each starting at the virtual time, cannot hold back one whose tag is later.
        """
        tenant = self._tenants[ticket.tenant]
        start_v = self._start_of(tenant, ticket)
        tenant.finish_v = start_v + ticket.cost / tenant.weight
        self._virtual = max(start_v, self._virtual + ticket.cost / self._by_length.weight)
        self._take(ticket)
        self._forget()

    def to_give_way(self, ticket: Item) -> Item:
        """Who leaves when the queue is over its bound since `ticket`, its newest, came: the newest of the tenant that
        has most waiting (longest queue drop), and `ticket` itself if its tenant would then have as many.
        """
        own = self._tenants[ticket.tenant]
        longest = self._by_length.longest()
        if len(longest.tickets) <= len(own.tickets):
            return ticket
        return next(reversed(longest.tickets))

    def _start_of(self, tenant: _Tenant[Item], ticket: Item) -> float:
        return max(ticket.arrived_v, tenant.finish_v)

    def _add_head(self, tenant: _Tenant[Item]) -> None:
        head = tenant.head
        self._heads[head.needs].add(head, order=self._start_of(tenant, head), number=head.number)

    def _take(self, ticket: Item) -> None:
        tenant = self._tenants[ticket.tenant]
        was_head = tenant.head is ticket
        del tenant.tickets[ticket]
        self._size -= 1
        self._by_length.move(tenant, len(tenant.tickets) + 1, len(tenant.tickets))
        if not was_head:
            return
        heads = self._heads[ticket.needs]
        heads.discard(ticket)
        if not heads:
            del self._heads[ticket.needs]
        if tenant.tickets:
            self._add_head(tenant)
        else:
            self._paid.add(tenant, order=tenant.finish_v, number=next(self._numbers))

    def _forget(self) -> None:
        """Drops tenants that wait for nothing and are paid for; all of them once nobody waits, for then all fit."""
        if not self._size:
            self._virtual = 0.0
            self._tenants.clear()
            self._paid = Heap()
        while (tenant := self._paid.first()) is not None and tenant.finish_v <= self._virtual:
            self._paid.discard(tenant)
            del self._tenants[tenant.name]
