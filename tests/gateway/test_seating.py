"""Open requests and their bytes are bounded, and no tenant takes the last place of the others."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proteus.errors import MediaTooLarge, QueueFull
from proteus.gateway.order import Tenant
from proteus.gateway.tenancy.seating import Seating
from proteus.limits_gateway import GatewayQueue

ACME, BOLT = (Tenant(name=name, cache_scope=name) for name in ("acme", "bolt"))


def seating_of(*, requests: int = 8, num_bytes: int = 800, shared_fairly: bool = True) -> Seating:
    limits = GatewayQueue(max_open_requests=requests, max_open_bytes=num_bytes, max_waiting=1, max_wait_ms=1)
    return Seating(limits, shared_fairly=shared_fairly)


def taken(seating: Seating, tenant: Tenant, held: ExitStack, *, num_bytes: int = 0) -> int:
    """How many it gets until it is refused."""
    for number in range(1000):
        try:
            held.enter_context(seating.take(num_bytes, tenant))
        except QueueFull:
            return number
    return 1000


@pytest.mark.parametrize(("shared_fairly", "most"), [(True, 4), (False, 8)])
def test_one_of_several_tenants_gets_half_and_the_only_one_all(shared_fairly: bool, most: int) -> None:
    seating = seating_of(shared_fairly=shared_fairly)
    with ExitStack() as held:
        assert taken(seating, ACME, held) == most
        assert seating.figures() == {"open_requests": most, "open_bytes": 0}
        assert taken(seating, BOLT, held) == (2 if shared_fairly else 0)
    assert seating.figures() == {"open_requests": 0, "open_bytes": 0}
    with ExitStack() as held:
        assert taken(seating, BOLT, held) == most


def test_a_refusal_names_the_limit_and_whose_requests_are_open() -> None:
    seating = seating_of()
    with ExitStack() as held:
        taken(seating, ACME, held)
        with (
            pytest.raises(QueueFull, match=r"4 of them of acme; limit: \[gateway.queue\] max_open_requests = 8"),
            seating.take(0, ACME),
        ):
            pass


def test_bytes_are_shared_as_places_are() -> None:
    seating = seating_of(requests=1000)
    for _ in range(2):  # what a tenant held is given back to it
        with ExitStack() as held:
            assert taken(seating, ACME, held, num_bytes=50) == 8
            assert seating.figures()["open_bytes"] == 400
            assert taken(seating, BOLT, held, num_bytes=50) == 4
        assert seating.figures() == {"open_requests": 0, "open_bytes": 0}


def test_a_body_is_held_piece_by_piece_up_to_all_there_is() -> None:
    seating = seating_of()
    with seating.take(0, ACME) as seat:
        for _ in range(8):
            seat.hold(100)
        assert seat.held_bytes == 800
        with pytest.raises(MediaTooLarge, match=r"\[gateway.queue\] max_open_bytes = 800"):
            seat.hold(1)
        assert seat.held_bytes == 800
    assert seating.figures() == {"open_requests": 0, "open_bytes": 0}


def test_of_two_bodies_of_a_tenant_the_second_leaves_room_for_others() -> None:
    seating = seating_of()
    with seating.take(300, ACME), seating.take(0, ACME) as seat:
        with pytest.raises(QueueFull, match=r"300 of them of acme; limit: \[gateway.queue\] max_open_bytes = 800"):
            seat.hold(201)
        with seating.take(400, BOLT):
            pass
    assert seating.figures() == {"open_requests": 0, "open_bytes": 0}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([ACME, BOLT]), st.integers(0, 900), st.booleans()), max_size=40))
def test_whatever_comes_and_goes_the_bounds_are_kept(steps: list[tuple[Tenant, int, bool]]) -> None:
    seating = seating_of()
    open_: list[ExitStack] = []
    for tenant, num_bytes, leaves in steps:
        held = ExitStack()
        try:
            held.enter_context(seating.take(num_bytes, tenant))
        except (QueueFull, MediaTooLarge):
            held.close()
        else:
            open_.append(held)
        if leaves and open_:
            open_.pop(0).close()
        figures = seating.figures()
        assert figures["open_requests"] == len(open_) <= 8
        assert figures["open_bytes"] <= 800
    for held in open_:
        held.close()
    assert seating.figures() == {"open_requests": 0, "open_bytes": 0}
