"""Who starts now, who waits and who is refused. Pure logic: no threads, no timers, the clock is handed in.

Every transition ends with nothing left to admit: what waits, waits for a resource. docs/decisions/0009 says why nobody
waits forever.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from proteus.admission.ask import Ask, cost_of, refuse_what_never_fits
from proteus.admission.drain import Drain
from proteus.admission.heap import Heap
from proteus.admission.ledger import Ledger
from proteus.admission.queue import FairQueue, Ticket
from proteus.errors import DeadlineExceeded, ProteusError, QueueFull
from proteus.limits import AdmissionLimits, ClassQueue, DrawAdmission, LatencyClass, Resources

FULL_COST = 1.0  # of a request that takes all of some resource


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Figures for metrics, at one moment."""

    held: Mapping[str, int]  # by resource
    peak: Mapping[str, int]  # by resource, the most ever held
    queued: Mapping[LatencyClass, int]
    admitted: Mapping[LatencyClass, int]  # since the start
    refused: Mapping[str, int]  # by error code, and `cancelled` for those that left while waiting; since the start


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Where the deployment file says how many may wait and for how long, as errors name it."""

    max_queue: str  # `{}` is the latency class
    max_wait_ms: str


class _Class:
    """One latency class: its queue, and its place among the classes (start-time fair queueing, with weights)."""

    def __init__(self, limits: ClassQueue, max_wait_s: float) -> None:
        self.limits = limits
        self.queue = FairQueue[Ticket]()
        self.drain = Drain(max_wait_s)
        self.finish_v = 0.0

    def start_v(self, virtual: float) -> float:
        """A class that was held up may catch up by one whole capacity, not more: it would hold up the others."""
        return max(self.finish_v, virtual - FULL_COST / self.limits.weight)


class Admission:
    """`settled` is told of each ticket that is admitted, or refused after it waited; it must not call back."""

    def __init__(
        self,
        limits: AdmissionLimits | DrawAdmission,
        *,
        clock_s: Callable[[], float],
        settled: Callable[[Ticket], None],
        keys: Keys | None = None,
    ) -> None:
        self._limits = limits
        self._table = table = "admission" if isinstance(limits, AdmissionLimits) else "draw.admission"
        self._keys = keys or Keys(max_queue=f"[{table}.queues] {{}}.max_queue", max_wait_ms=f"[{table}] max_wait_ms")
        self._clock_s = clock_s
        self._settled = settled
        max_wait_s = limits.max_wait_ms / 1000
        self.ledger = Ledger(limits.capacity, freed=self.advance)
        self._classes: dict[LatencyClass, _Class] = {
            name: _Class(queue, max_wait_s)  # in this order where nothing else decides
            for name, queue in limits.queues.named()
        }
        self._virtual = 0.0
        self._expiries = Heap[Ticket]()
        self._numbers = itertools.count()
        self._admitted: Counter[LatencyClass] = Counter()
        self._refused: Counter[str] = Counter()

    def submit(self, ask: Ask) -> Ticket:
        """A ticket that has a reservation or waits.

        Raises MediaTooLarge if it can never be admitted, DeadlineExceeded if it is too late already, QueueFull.
        """
        try:
            return self._submit(ask, self._clock_s())
        except ProteusError as error:
            self._refused[error.code] += 1
            raise

    def cancel(self, ticket: Ticket) -> None:
        """A waiting ticket leaves; nothing happens to one that does not wait any more."""
        if ticket.waiting:
            self._take_out(ticket)
            self._refused["cancelled"] += 1
            self.advance()

    def advance(self) -> None:
        """Refuses those whose time is over, then admits all that may go. Called after whatever frees something."""
        self._advance(self._clock_s())

    def resize(self, times: int) -> None:
        """Room for so many times the capacity, each of which takes a request by itself: so many servers."""
        self.ledger.resize(Resources(**{name: limit * times for name, limit in self._limits.capacity.named()}))

    def next_expiry_s(self) -> float | None:
        """When `advance` has to be called next if nothing is freed before; None while nobody waits."""
        ticket = self._expiries.first()
        return None if ticket is None else ticket.expires_s

    def snapshot(self) -> Snapshot:
        """What is held and waits now, and what was decided since the start."""
        return Snapshot(
            held=dict(self.ledger.held.named()),
            peak=dict(self.ledger.peak.named()),
            queued={name: len(one.queue) for name, one in self._classes.items()},
            admitted={name: self._admitted[name] for name in self._classes},
            refused=dict(self._refused),
        )

    def _submit(self, ask: Ask, now_s: float) -> Ticket:
        refuse_what_never_fits(ask, self._limits, table=self._table)
        ticket = self._ticket(ask, now_s)
        if ticket.expires_s <= now_s:
            raise self._too_late(ticket, now_s)
        one = self._classes[ask.latency_class]
        if not one.queue:
            one.drain.begin(now_s)
            one.finish_v = max(one.finish_v, self._virtual)
        if not self._expiries and self.ledger.can_reserve(ask.vector):
            self._grant(one, ticket, now_s)  # as the queue would: nobody is passed, and nobody is owed anything
            return ticket
        one.queue.add(ticket, weight=ask.weight)
        self._expiries.add(ticket, order=ticket.expires_s, number=ticket.number)
        self._advance(now_s)
        if ticket.waiting and len(one.queue) > one.limits.max_queue:
            self._make_room(one, ticket, now_s)
        return ticket

    def _ticket(self, ask: Ask, now_s: float) -> Ticket:
        last_s = now_s + self._limits.max_wait_ms / 1000
        return Ticket(
            ask=ask,
            number=next(self._numbers),
            cost=cost_of(ask.vector, self._limits.capacity),
            needs=self.ledger.limited(ask.vector),
            arrived_s=now_s,
            expires_s=last_s if ask.deadline_s is None else min(last_s, ask.deadline_s),
        )

    def _make_room(self, one: _Class, newest: Ticket, now_s: float) -> None:
        leaving = one.queue.to_give_way(newest)
        error = QueueFull(
            f"{one.limits.max_queue:,} requests wait already",
            limit=f"{self._keys.max_queue.format(newest.ask.latency_class)} = {one.limits.max_queue:,}",
            retry_after_s=one.drain.send_away(now_s),
        )
        self._take_out(leaving)
        if leaving is newest:
            raise error
        self._refuse(leaving, error)

    def _advance(self, now_s: float) -> None:
        while (ticket := self._expiries.first()) is not None and ticket.expires_s <= now_s:
            self._take_out(ticket)
            self._refuse(ticket, self._too_late(ticket, now_s))
        while self._expiries and (found := self._next()) is not None:  # all who wait are in it
            self._admit(*found, now_s)

    def _next(self) -> tuple[Ticket, bool] | None:
        """The first in fair order that fits and needs nothing that one before it waits for; and whether it leads."""
        awaited: set[str] = set()
        classes: set[LatencyClass] = set()
        for ticket in self._firsts():
            leads_its_class = ticket.ask.latency_class not in classes
            classes.add(ticket.ask.latency_class)
            short = self.ledger.short(ticket.ask.vector)
            if not short and ticket.needs.isdisjoint(awaited):
                return ticket, leads_its_class
            if leads_its_class:  # what it was short of once stays set aside, or others could pass it in turn for ever
                ticket.awaits |= short
            awaited |= short | ticket.awaits
        return None

    def _firsts(self) -> list[Ticket]:
        """Whoever may be next, in fair order: by class, then by tenant, then by arrival."""
        keyed = [
            (one.start_v(self._virtual), rank, start_v, ticket.number, ticket)
            for rank, one in enumerate(self._classes.values())
            for start_v, ticket in one.queue.firsts()
        ]
        return [ticket for *_, ticket in sorted(keyed)]

    def _admit(self, ticket: Ticket, leads_its_class: bool, now_s: float) -> None:
        one = self._classes[ticket.ask.latency_class]
        if leads_its_class:  # one that passes is not charged to its class: what it passed would wait the longer for it
            start_v = one.start_v(self._virtual)
            one.finish_v = start_v + ticket.cost / one.limits.weight
            self._virtual = max(self._virtual, start_v)
        one.queue.admit(ticket)
        self._left(ticket)
        self._grant(one, ticket, now_s)

    def _grant(self, one: _Class, ticket: Ticket, now_s: float) -> None:
        ticket.waiting = False
        one.drain.admitted(now_s)
        ticket.reservation = self.ledger.reserve(ticket.ask.vector)
        self._admitted[ticket.ask.latency_class] += 1
        self._settled(ticket)

    def _refuse(self, ticket: Ticket, error: ProteusError) -> None:
        ticket.error = error
        self._refused[error.code] += 1
        self._settled(ticket)

    def _take_out(self, ticket: Ticket) -> None:
        ticket.waiting = False
        self._classes[ticket.ask.latency_class].queue.remove(ticket)
        self._left(ticket)

    def _left(self, ticket: Ticket) -> None:
        self._expiries.discard(ticket)
        if not self._expiries:  # nobody waits, so nobody is owed anything
            self._virtual = 0.0
            for one in self._classes.values():
                one.finish_v = 0.0

    def _too_late(self, ticket: Ticket, now_s: float) -> DeadlineExceeded:
        own = ticket.expires_s == ticket.ask.deadline_s
        return DeadlineExceeded(
            f"not started after {(now_s - ticket.arrived_s) * 1e3:,.0f} ms of waiting",
            limit="the request's deadline" if own else f"{self._keys.max_wait_ms} = {self._limits.max_wait_ms:,}",
            fix="try again later, or allow more time" if own else "try again later",
        )
