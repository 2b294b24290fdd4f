from __future__ import annotations

import random
from collections import Counter
from itertools import count

import pytest

from proteus.admission.queue import FairQueue, Ticket
from tests.admission.asks import ask_of

NUMBERS = count()


def ticket_of(tenant: str, cost: float = 0.1, needs: frozenset[str] = frozenset({"requests"})) -> Ticket:
    return Ticket(
        ask=ask_of("media", tenant),
        number=next(NUMBERS),
        cost=cost,
        needs=needs,
        arrived_s=0.0,
        expires_s=1.0,
    )


def first_of(queue: FairQueue[Ticket]) -> Ticket:
    return min(queue.firsts(), key=lambda first: (first[0], first[1].number))[1]


def queue_of(*tickets: Ticket) -> FairQueue[Ticket]:
    queue = FairQueue[Ticket]()
    for ticket in tickets:
        queue.add(ticket)
    return queue


def admit(queue: FairQueue[Ticket], times: int) -> list[str]:
    """Tenants of those admitted, in order."""
    names = []
    for _ in range(times):
        ticket = first_of(queue)
        queue.admit(ticket)
        names.append(ticket.ask.tenant)
    return names


def test_one_tenant_is_served_in_order_of_arrival() -> None:
    tickets = [ticket_of("ann", cost) for cost in (0.5, 0.1, 0.3)]
    queue = queue_of(*tickets)
    for ticket in tickets:
        assert first_of(queue) is ticket
        queue.admit(ticket)
    assert len(queue) == 0


def test_one_that_comes_late_takes_turns_with_one_that_floods() -> None:
    queue = queue_of(*(ticket_of("flood") for _ in range(50)))
    admit(queue, 10)
    for _ in range(5):
        queue.add(ticket_of("late"))
    assert Counter(admit(queue, 10)) == {"flood": 5, "late": 5}


def test_shares_are_equal_in_cost_not_in_requests() -> None:
    queue = queue_of(*(ticket_of("large", 0.4) for _ in range(30)), *(ticket_of("small", 0.1) for _ in range(90)))
    assert Counter(admit(queue, 50)) == pytest.approx({"large": 10, "small": 40}, abs=1)


def test_waiting_for_nothing_saves_nothing_up() -> None:
    queue = queue_of(ticket_of("rare"), *(ticket_of("steady") for _ in range(100)))
    admit(queue, 50)
    for _ in range(20):
        queue.add(ticket_of("rare"))
    assert Counter(admit(queue, 20)) == pytest.approx({"rare": 10, "steady": 10}, abs=1)


def test_a_ticket_that_leaves_costs_its_tenant_nothing() -> None:
    leaving = [ticket_of("ann", 1.0) for _ in range(3)]
    queue = queue_of(*leaving, ticket_of("ann"), ticket_of("bob"), ticket_of("bob"))
    for ticket in leaving:
        queue.remove(ticket)
    assert admit(queue, 3) == ["ann", "bob", "bob"]


def test_a_ticket_may_leave_from_the_middle() -> None:
    tickets = [ticket_of("ann") for _ in range(3)]
    queue = queue_of(*tickets)
    queue.remove(tickets[1])
    assert [ticket for _, ticket in queue.firsts()] == [tickets[0]]
    queue.admit(tickets[0])
    assert first_of(queue) is tickets[2]


def test_each_set_of_needs_has_a_first() -> None:
    pixels, tokens = frozenset({"requests", "decoded_pixels"}), frozenset({"requests", "text_tokens"})
    tickets = [ticket_of("ann", needs=pixels), ticket_of("bob", needs=pixels), ticket_of("cid", needs=tokens)]
    queue = queue_of(*tickets, ticket_of("cid", needs=pixels))
    assert {ticket for _, ticket in queue.firsts()} == {tickets[0], tickets[2]}


def test_new_tenants_that_never_end_do_not_hold_back_an_old_one() -> None:
    queue = queue_of(*(ticket_of("old", 1.0) for _ in range(3)), ticket_of("new 0"))
    admitted: list[str] = []
    while admitted.count("old") < 3:
        queue.add(ticket_of(f"new {len(admitted) + 1}"))
        admitted += admit(queue, 1)
        assert len(admitted) < 100


def test_the_one_with_most_waiting_gives_way() -> None:
    tickets = [ticket_of(tenant) for tenant in ("a", "b", "b", "b", "c", "c")]
    queue = queue_of(*tickets)
    newcomer = ticket_of("d")
    queue.add(newcomer)
    assert queue.to_give_way(newcomer) is tickets[3]


@pytest.mark.parametrize("waiting", [("a",), ("a", "a", "b"), ("a", "b", "b")])
def test_a_newcomer_whose_tenant_would_have_as_many_gives_way_itself(waiting: tuple[str, ...]) -> None:
    newcomer = ticket_of("a")
    queue = queue_of(*map(ticket_of, waiting), newcomer)
    assert queue.to_give_way(newcomer) is newcomer


def test_memory_of_tenants_is_bounded_while_the_queue_never_empties() -> None:
    chance = random.Random(7)
    queue = queue_of(*(ticket_of(f"first {number}") for number in range(20)))
    most = 0
    for number in range(5000):
        queue.add(ticket_of(f"tenant {number}", chance.choice([1e-6, 0.01, 1.0])))
        queue.admit(first_of(queue)) if number % 3 else queue.remove(first_of(queue))
        most = max(most, queue.num_tenants)
    assert most < 5 * 20


def test_an_empty_queue_remembers_nobody() -> None:
    queue = queue_of(*(ticket_of("ann", 1.0) for _ in range(5)))
    admit(queue, 5)
    assert (queue.num_tenants, len(queue)) == (0, 0)


def test_a_tenant_that_comes_back_before_it_is_paid_for_is_not_forgotten_while_it_waits() -> None:
    queue = queue_of(ticket_of("ann", 0.3), *(ticket_of("bob") for _ in range(20)))
    assert admit(queue, 1) == ["ann"]
    back = ticket_of("ann", needs=frozenset({"decoded_pixels"}))
    queue.add(back)
    for _ in range(19):
        queue.admit(next(ticket for _, ticket in queue.firsts() if ticket is not back))
    assert first_of(queue) is back
    queue.admit(back)


def weighted(**weights: int) -> FairQueue[Ticket]:
    """Each tenant has 60 waiting."""
    queue = FairQueue[Ticket]()
    for tenant, weight in weights.items():
        for _ in range(60):
            queue.add(ticket_of(tenant), weight=weight)
    return queue


def test_shares_are_as_the_weights() -> None:
    assert Counter(admit(weighted(heavy=3, light=1), 40)) == pytest.approx({"heavy": 30, "light": 10}, abs=1)


@pytest.mark.parametrize("weight", [1, 10])
def test_a_heavy_tenant_that_has_waited_does_not_hold_up_one_that_comes_late(weight: int) -> None:
    queue = weighted(heavy=10, light=1)
    admit(queue, 33)
    late = ticket_of("late")
    queue.add(late, weight=weight)
    assert "late" in admit(queue, 12)


def test_a_weight_that_changes_counts_at_once_though_its_tenant_waits_all_the_while() -> None:
    queue = weighted(heavy=9, light=1)
    assert Counter(admit(queue, 20))["heavy"] == pytest.approx(18, abs=1)
    queue.add(ticket_of("heavy"), weight=1)
    assert Counter(admit(queue, 20))["heavy"] == pytest.approx(10, abs=1)
    queue.add(ticket_of("light"), weight=4)
    assert Counter(admit(queue, 20))["light"] == pytest.approx(16, abs=2)
