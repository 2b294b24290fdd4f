"""Admission against a plain list of everything that was asked, under any order of events; and that nobody starves."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from proteus.admission.admission import Admission
from proteus.admission.queue import Ticket
from proteus.cost.vector import ResourceVector
from proteus.errors import DeadlineExceeded, MediaTooLarge, ProteusError, QueueFull
from proteus.limits import LatencyClass, Resources
from tests.admission.asks import CLASSES, Desk, ask_of, is_held, limits_of, release

CAPACITY = Resources(requests=4, decoded_pixels=10, text_tokens=10)
MAX_QUEUE = 5
AMOUNTS = st.fixed_dictionaries(
    {"requests": st.integers(0, 2)},
    optional={"decoded_pixels": st.integers(0, 11), "text_tokens": st.integers(0, 11), "frames": st.integers(0, 99)},
)
TENANTS = st.sampled_from(["ann", "bob", "cid"])


class AnyOrderOfEvents(RuleBasedStateMachine):
    """`asked` is the model: every ticket handed out, in order; what each became is read off the ticket."""

    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk(limits_of(CAPACITY, max_queue=MAX_QUEUE, max_wait_ms=5000))
        self.asked: list[Ticket] = []
        self.cancelled: list[Ticket] = []
        self.refused_at_the_door = 0

    @rule(latency_class=st.sampled_from(CLASSES), tenant=TENANTS, amounts=AMOUNTS, patience=st.integers(-1, 9))
    def submit(self, latency_class: LatencyClass, tenant: str, amounts: dict[str, int], patience: int) -> None:
        deadline_s = self.desk.clock.now_s + patience
        never = any(amounts.get(name, 0) > limit for name, limit in CAPACITY.named())
        error = None
        try:
            self.asked.append(self.desk.admission.submit(ask_of(latency_class, tenant, deadline_s, **amounts)))
        except ProteusError as raised:
            error = raised
            self.refused_at_the_door += 1
        if never:
            assert isinstance(error, MediaTooLarge)
        elif patience <= 0:
            assert isinstance(error, DeadlineExceeded)
        elif error is not None:
            assert isinstance(error, QueueFull) and len(self.waiting(latency_class)) == MAX_QUEUE

    @precondition(lambda self: self.held())
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        release(data.draw(st.sampled_from(self.held())))

    @precondition(lambda self: self.held())
    @rule(data=st.data())
    def release_twice(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(self.held()))
        release(ticket)
        with pytest.raises(RuntimeError):
            release(ticket)

    @precondition(lambda self: self.held())
    @rule(data=st.data())
    def shrink(self, data: st.DataObject) -> None:
        reservation = data.draw(st.sampled_from(self.held())).reservation
        assert reservation is not None
        reservation.shrink(ResourceVector(requests=reservation.vector.requests))

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(self.asked))
        if ticket.waiting:
            self.cancelled.append(ticket)
        self.desk.admission.cancel(ticket)

    @rule(seconds=st.sampled_from([0.5, 1.0, 4.0]))
    def wait(self, seconds: float) -> None:
        self.desk.wait(seconds)

    def held(self) -> list[Ticket]:
        return [ticket for ticket in self.asked if is_held(ticket)]

    def waiting(self, latency_class: LatencyClass) -> list[Ticket]:
        return [ticket for ticket in self.asked if ticket.waiting and ticket.ask.latency_class == latency_class]

    @invariant()
    def the_ledger_is_the_sum_of_what_is_held_and_within_capacity(self) -> None:
        ledger = self.desk.admission.ledger
        ledger.check()
        vectors = [ticket.reservation.vector for ticket in self.held() if ticket.reservation is not None]
        assert ledger.held == sum(vectors, ResourceVector())
        assert all(getattr(ledger.held, name) <= limit for name, limit in CAPACITY.named())

    @invariant()
    def queues_are_bounded_and_nobody_is_lost(self) -> None:
        snapshot = self.desk.admission.snapshot()
        for latency_class in CLASSES:
            assert snapshot.queued[latency_class] == len(self.waiting(latency_class)) <= MAX_QUEUE
        admitted = [ticket for ticket in self.asked if ticket.reservation is not None]
        refused = [ticket for ticket in self.asked if ticket.error is not None]
        waiting = [ticket for ticket in self.asked if ticket.waiting]
        assert len(admitted) + len(refused) + len(waiting) + len(self.cancelled) == len(self.asked)
        assert set(self.desk.settled) == {*admitted, *refused} and len(self.desk.settled) == len(admitted + refused)
        assert sum(snapshot.admitted.values()) == len(admitted)
        assert sum(snapshot.refused.values()) == len(refused) + len(self.cancelled) + self.refused_at_the_door

    @invariant()
    def a_tenant_is_served_in_order(self) -> None:
        admitted = [ticket for ticket in self.desk.settled if ticket.reservation is not None]
        for latency_class in CLASSES:
            for tenant in ("ann", "bob", "cid"):
                numbers = [t.number for t in admitted if (t.ask.latency_class, t.ask.tenant) == (latency_class, tenant)]
                assert numbers == sorted(numbers)

    @invariant()
    def nobody_waits_who_fits_and_needs_nothing_others_wait_for(self) -> None:
        heads: dict[tuple[str, str], Ticket] = {}
        for ticket in self.asked:
            if ticket.waiting:
                heads.setdefault((ticket.ask.latency_class, ticket.ask.tenant), ticket)
        ledger = self.desk.admission.ledger
        awaited = set[str]().union(*(ledger.short(head.ask.vector) | head.awaits for head in heads.values()))
        assert not any(
            ledger.can_reserve(head.ask.vector) and ledger.limited(head.ask.vector).isdisjoint(awaited)
            for head in heads.values()
        )

    @invariant()
    def nobody_waits_beyond_its_time(self) -> None:
        expiry_s = self.desk.admission.next_expiry_s()
        waiting = [ticket.expires_s for ticket in self.asked if ticket.waiting]
        assert expiry_s == min(waiting, default=None)
        assert expiry_s is None or expiry_s > self.desk.clock.now_s

    def teardown(self) -> None:
        while self.held():
            release(self.held()[0])
        assert not any(ticket.waiting for ticket in self.asked)
        assert self.desk.admission.ledger.held == ResourceVector()


TestAnyOrderOfEvents = AnyOrderOfEvents.TestCase
TestAnyOrderOfEvents.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


class WithAndWithoutTheQueue(RuleBasedStateMachine):
    """Whoever comes while nobody waits is not put into the queue; nothing may tell that from having been there."""

    def __init__(self) -> None:
        super().__init__()
        limits = limits_of(CAPACITY, max_queue=2, max_wait_ms=5000)
        self.desks = Desk(limits), Desk(limits)
        self.desks[1].admission.ledger.can_reserve = lambda vector: False  # type: ignore[method-assign]
        self.asked: list[tuple[Ticket, ...]] = []

    @rule(latency_class=st.sampled_from(CLASSES), tenant=TENANTS, amounts=AMOUNTS, weight=st.integers(1, 3))
    def submit(self, latency_class: LatencyClass, tenant: str, amounts: dict[str, int], weight: int) -> None:
        tickets, errors = list[Ticket](), list[str]()
        for desk in self.desks:
            try:
                ask = replace(ask_of(latency_class, tenant, **amounts), weight=weight)
                tickets.append(desk.admission.submit(ask))
            except ProteusError as error:
                errors.append(str(error))
        assert (len(tickets), len(set(errors))) in ((2, 0), (0, 1))
        self.asked += [tuple(tickets)] if tickets else []

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        tickets = data.draw(st.sampled_from(self.asked))
        self.asked.remove(tickets)
        for desk, ticket in zip(self.desks, tickets, strict=True):
            desk.admission.cancel(ticket)
            if is_held(ticket):
                release(ticket)

    @rule(seconds=st.sampled_from([0.5, 1.0, 4.0]))
    def wait(self, seconds: float) -> None:
        for desk in self.desks:
            desk.wait(seconds)

    @invariant()
    def both_are_the_same(self) -> None:
        one, other = ([(ticket.number, str(ticket.error)) for ticket in desk.settled] for desk in self.desks)
        assert one == other
        for told in (Admission.snapshot, Admission.next_expiry_s, owed):
            assert told(self.desks[0].admission) == told(self.desks[1].admission)


def owed(admission: Admission) -> list[Any]:
    """What decides who is next, and when the next is to come back."""
    return [admission._virtual, *((one.finish_v, vars(one.drain)) for one in admission._classes.values())]


TestWithAndWithoutTheQueue = WithAndWithoutTheQueue.TestCase
TestWithAndWithoutTheQueue.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)

ROUNDS_HELD = 2
MAX_ROUNDS = 300
COMPETITORS = st.lists(
    st.tuples(
        st.sampled_from(CLASSES),
        st.sampled_from(["same", "other", "always new"]),
        st.fixed_dictionaries(
            {"requests": st.integers(0, 1)},
            optional={"decoded_pixels": st.integers(1, 10), "text_tokens": st.integers(1, 10)},
        ),
    ),
    min_size=1,
    max_size=4,
)
EVERYTHING = dict(CAPACITY.named())
# Text is first and waits for requests; the tenant "same" passes the probe whenever only requests are short, and its
# class, which is charged for it, is never first.
PASSED_BY_ITS_OWN_CLASS: list[tuple[LatencyClass, str, dict[str, int]]] = [
    ("text", "same", {"requests": 1}),
    ("text", "same", {"requests": 1}),
    ("text", "same", {"requests": 1}),
    ("media", "same", {"requests": 0, "decoded_pixels": 1, "text_tokens": 5}),
]
# Text takes every request that comes free; the tenant "other" needs none and kept its class level with text.
PASSED_IN_STEP: list[tuple[LatencyClass, str, dict[str, int]]] = [
    ("text", "same", {"requests": 1}),
    ("text", "same", {"requests": 1}),
    ("media", "other", {"requests": 0, "decoded_pixels": 5}),
    ("media", "same", {"requests": 1}),
]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(competitors=COMPETITORS, latency_class=st.sampled_from(CLASSES))
@example(competitors=PASSED_IN_STEP, latency_class="media")
@example(competitors=PASSED_BY_ITS_OWN_CLASS[1:], latency_class="media")
@example(competitors=PASSED_BY_ITS_OWN_CLASS, latency_class="media")
def test_a_request_for_everything_is_admitted_whoever_keeps_coming(
    competitors: list[tuple[LatencyClass, str, dict[str, int]]], latency_class: LatencyClass
) -> None:
    """The second time too, when its tenant has a whole capacity to make up for. Whatever is admitted is held for two
    rounds; each round the competitors come once more, some as new tenants.
    """
    desk = Desk(limits_of(CAPACITY, max_queue=6, max_wait_ms=10**9))
    names, probes = count(), list[Ticket]()
    ends: deque[list[Ticket]] = deque([[]] * ROUNDS_HELD)
    for _ in range(MAX_ROUNDS):
        for ticket in ends.popleft():
            release(ticket)
        if not probes or not probes[-1].waiting:
            probes += submitted(desk, latency_class, "probe", EVERYTHING)
        for competitor, tenant, amounts in competitors:
            submitted(desk, competitor, f"{tenant} {next(names)}" if tenant == "always new" else tenant, amounts)
        ends.append([ticket for ticket in desk.settled if is_held(ticket)])
        desk.settled.clear()
        if [probe.waiting for probe in probes[:2]] == [False, False]:
            return
    pytest.fail(f"still waiting after {MAX_ROUNDS} rounds")


def submitted(desk: Desk, latency_class: LatencyClass, tenant: str, amounts: dict[str, int]) -> list[Ticket]:
    try:
        return [desk.submit(latency_class, tenant, **amounts)]
    except QueueFull:
        return []
