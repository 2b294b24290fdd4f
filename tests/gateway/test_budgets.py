"""What a tenant may hold and use: exact, given back once, and told with numbers where it is not enough."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from proteus.cost.vector import ResourceVector
from proteus.errors import MediaTooLarge
from proteus.gateway.errors import OverBudget, http_error
from proteus.gateway.order import Tenant
from proteus.gateway.tenancy.budgets import NOTHING, Budgets, Charge, used_of
from tests.admission.asks import Clock


def tenant_of(name: str = "acme", **limits: Any) -> Tenant:
    return Tenant(name=name, cache_scope=name, **limits)


def need(**amounts: int) -> ResourceVector:
    return ResourceVector(**amounts)


def budgets_of() -> tuple[Budgets, Clock]:
    clock = Clock()
    return Budgets(clock_s=clock), clock


def test_what_is_held_comes_back_and_others_hold_their_own() -> None:
    budgets, _ = budgets_of()
    acme, bolt = tenant_of(in_flight={"requests": 1}), tenant_of("bolt", in_flight={"requests": 1})
    with budgets.charge(acme, need(requests=1)):
        with pytest.raises(OverBudget):
            budgets.charge(acme, need(requests=1))
        with budgets.charge(bolt, need(requests=1)):
            assert budgets.held("acme") == budgets.held("bolt") == need(requests=1)
    assert budgets.held("acme") == NOTHING
    with budgets.charge(acme, need(requests=1)):
        pass


def test_a_refusal_names_resource_used_limit_and_when_to_come_back() -> None:
    budgets, clock = budgets_of()
    acme = tenant_of(in_flight={"visual_tokens": 100})
    for _ in range(20):
        with budgets.charge(acme, need(visual_tokens=1)):
            clock.now_s += 4.0
    with budgets.charge(acme, need(visual_tokens=80)), pytest.raises(OverBudget) as refused:
        budgets.charge(acme, need(visual_tokens=40))
    status, document, retry_after_s = http_error(refused.value)
    assert (status, document["error"]["code"]) == (429, "over_budget")
    assert "acme has visual_tokens = 80 in flight and asks for 40 more" in document["error"]["message"]
    assert document["error"]["limit"] == "[tenants.acme.in_flight] visual_tokens = 100"
    assert retry_after_s == pytest.approx(4.0 * 20 / 80, abs=0.1)
    assert budgets.figures() == {("acme", "visual_tokens"): 1}


def test_a_budget_per_second_lets_a_burst_and_then_the_average() -> None:
    budgets, clock = budgets_of()
    acme = tenant_of(per_second={"requests": 2.0}, burst_s=3.0)
    for _ in range(6):
        budgets.charge(acme, need(requests=1))
    with pytest.raises(OverBudget, match=r"limit: \[tenants.acme.per_second\] requests = 2.0, burst_s = 3") as refused:
        budgets.charge(acme, need(requests=1))
    assert refused.value.retry_after_s == pytest.approx(0.5)
    clock.now_s += 0.5
    budgets.charge(acme, need(requests=1))
    clock.now_s += 1000.0
    for _ in range(6):
        budgets.charge(acme, need(requests=1))
    with pytest.raises(OverBudget):
        budgets.charge(acme, need(requests=1))


def test_a_rate_below_one_a_second_is_one() -> None:
    budgets, clock = budgets_of()
    acme = tenant_of(per_second={"images": 0.1}, burst_s=20.0)
    budgets.charge(acme, need(images=2))
    with pytest.raises(OverBudget) as refused:
        budgets.charge(acme, need(images=1))
    assert refused.value.retry_after_s == pytest.approx(10.0)
    clock.now_s += 10.0
    budgets.charge(acme, need(images=1))


def test_the_longest_of_several_waits_is_told() -> None:
    budgets, _ = budgets_of()
    acme = tenant_of(per_second={"requests": 1.0, "visual_tokens": 1.0}, burst_s=10.0)
    budgets.charge(acme, need(requests=10, visual_tokens=10))
    with pytest.raises(OverBudget, match="visual_tokens = 10 used ahead") as refused:
        budgets.charge(acme, need(requests=1, visual_tokens=7))
    assert refused.value.retry_after_s == pytest.approx(7.0)


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({"in_flight": {"decoded_pixels": 1000}}, "[tenants.acme.in_flight] decoded_pixels = 1,000"),
        ({"per_second": {"decoded_pixels": 10.5}}, "[tenants.acme.per_second] decoded_pixels = 10.5, burst_s = 10"),
    ],
)
def test_what_never_fits_is_too_large_and_not_too_early(limits: dict[str, Any], told: str) -> None:
    budgets, _ = budgets_of()
    acme = tenant_of(**limits)
    assert not budgets.affords(acme, need(decoded_pixels=1001))
    with pytest.raises(MediaTooLarge, match="needs decoded_pixels = 1,001") as refused:
        budgets.charge(acme, need(decoded_pixels=1001))
    assert refused.value.limit == told
    assert http_error(refused.value)[0] == 413


def test_a_refused_request_is_charged_for_nothing() -> None:
    budgets, _ = budgets_of()
    acme = tenant_of(per_second={"requests": 1.0, "images": 1.0}, in_flight={"requests": 5})
    budgets.charge(acme, need(images=10))
    for _ in range(50):
        with pytest.raises(OverBudget):
            budgets.charge(acme, need(requests=1, images=1))
    assert budgets.held("acme") == need(images=10)
    assert budgets.affords(acme, need(requests=5))


def test_what_an_answer_did_not_use_comes_back_once() -> None:
    budgets, _ = budgets_of()
    acme = tenant_of(per_second={"output_tokens": 10.0})
    with budgets.charge(acme, need(output_tokens=100)) as charge:
        assert not budgets.affords(acme, need(output_tokens=1))
    charge.settle(need(output_tokens=30))
    charge.settle(NOTHING)
    assert budgets.affords(acme, need(output_tokens=70))
    assert not budgets.affords(acme, need(output_tokens=71))


def test_what_has_come_back_by_time_does_not_come_back_again() -> None:
    budgets, clock = budgets_of()
    acme = tenant_of(per_second={"output_tokens": 10.0})
    charge = budgets.charge(acme, need(output_tokens=100))
    clock.now_s += 100.0
    assert budgets.affords(acme, need(output_tokens=100))
    charge.settle(NOTHING)
    budgets.charge(acme, need(output_tokens=100))
    assert not budgets.affords(acme, need(output_tokens=1))


def test_a_changed_limit_counts_at_once() -> None:
    budgets, _ = budgets_of()
    with budgets.charge(tenant_of(in_flight={"requests": 2}, per_second={"requests": 1.0}), need(requests=2)) as charge:
        with pytest.raises(OverBudget):
            budgets.charge(tenant_of(in_flight={"requests": 1}), need(requests=1))
        budgets.charge(tenant_of(in_flight={"requests": 3}), need(requests=1))
    charge.settle(NOTHING)
    assert budgets.held("acme") == need(requests=1)


def test_a_budget_cannot_be_given_back_twice() -> None:
    budgets, _ = budgets_of()
    with budgets.charge(tenant_of(), need(requests=1)) as charge:
        pass
    with pytest.raises(RuntimeError):
        charge.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        ({}, need(output_tokens=50, text_tokens=9)),
        ({"usage": {"output_tokens": 3, "text_tokens": 9, "cached_tokens": 8}}, need(output_tokens=3, text_tokens=9)),
        ({"usage": {"output_tokens": 99}}, need(output_tokens=50, text_tokens=9)),
        ({"usage": {"images": 1, "evaluations": 7}}, need(output_tokens=50, text_tokens=9)),
    ],
)
def test_what_was_used_is_never_more_than_was_planned(report: dict[str, Any], expected: ResourceVector) -> None:
    assert used_of(need(output_tokens=50, text_tokens=9), report) == expected


AMOUNTS = st.builds(ResourceVector, requests=st.integers(0, 3), images=st.integers(0, 6))
IN_FLIGHT, RATE, BURST_S = {"requests": 4, "images": 8}, 2.0, 4.0
LIMITED = tenant_of(in_flight=IN_FLIGHT, per_second={"images": RATE}, burst_s=BURST_S)


class AnyOrderOfCharges(RuleBasedStateMachine):
    """Against a plain list of what is open and a bucket filled by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.budgets, self.clock = budgets_of()
        self.open: list[tuple[Charge, ResourceVector]] = []
        self.ended: list[tuple[Charge, ResourceVector]] = []
        self.tokens = RATE * BURST_S

    @rule(vector=AMOUNTS)
    def charge(self, vector: ResourceVector) -> None:
        held = sum((one for _, one in self.open), NOTHING)
        fits = all(
            not (needed := getattr(vector, name)) or getattr(held, name) + needed <= limit
            for name, limit in IN_FLIGHT.items()
        )
        fits &= not vector.images or vector.images <= self.tokens + 1e-6
        assert self.budgets.affords(LIMITED, vector) == fits
        if not fits:
            with pytest.raises(OverBudget, match="try again in"):
                self.budgets.charge(LIMITED, vector)
            return
        self.open.append((self.budgets.charge(LIMITED, vector), vector))
        self.tokens -= vector.images

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        charge, vector = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        charge.__exit__(None, None, None)
        self.ended.append((charge, vector))

    @precondition(lambda self: self.ended)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        charge, vector = self.ended.pop(0)
        used = data.draw(st.integers(0, vector.images))
        charge.settle(need(images=used))
        self.tokens = min(RATE * BURST_S, self.tokens + vector.images - used)

    @rule(seconds=st.sampled_from([0.25, 1.0, 8.0]))
    def wait(self, seconds: float) -> None:
        self.clock.now_s += seconds
        self.tokens = min(RATE * BURST_S, self.tokens + RATE * seconds)

    @invariant()
    def what_is_held_is_what_is_open(self) -> None:
        held = self.budgets.held("acme")
        assert held == sum((vector for _, vector in self.open), NOTHING)
        assert all(getattr(held, name) <= limit for name, limit in IN_FLIGHT.items())

    def teardown(self) -> None:
        for charge, _ in self.open:
            charge.__exit__(None, None, None)
        assert self.budgets.held("acme") == NOTHING


TestAnyOrderOfCharges = AnyOrderOfCharges.TestCase
TestAnyOrderOfCharges.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 3), st.integers(1, 6)), max_size=60))
def test_whoever_comes_back_when_told_is_let_in(steps: list[tuple[float, int]]) -> None:
    budgets, clock = budgets_of()
    acme = tenant_of(per_second={"images": 2.0}, burst_s=3.0)
    for seconds, images in steps:
        clock.now_s += seconds
        try:
            budgets.charge(acme, need(images=images))
        except OverBudget as error:
            clock.now_s += (error.retry_after_s or 0.0) + 1e-6
            budgets.charge(acme, need(images=images))
