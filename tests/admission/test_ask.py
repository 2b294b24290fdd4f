from __future__ import annotations

import pytest

from proteus.admission.ask import LEAST_COST, cost_of, refuse_if_over
from proteus.cost.vector import ResourceVector
from proteus.errors import MediaTooLarge
from proteus.limits import Resources
from tests.admission.asks import ask_of

CAPACITY = Resources(requests=10, decoded_pixels=1000)


def test_amounts_below_zero_are_no_ask() -> None:
    with pytest.raises(ValueError, match="frames = -1 is below zero"):
        ask_of(frames=-1)


def test_what_is_exactly_at_the_limit_passes() -> None:
    refuse_if_over(ask_of(requests=10, decoded_pixels=1000, kv_bytes=10**15), CAPACITY, table="admission.capacity")


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("decoded_pixels", "send fewer or smaller media"),
        ("visual_tokens", "send fewer or smaller media"),
        ("text_tokens", "send less text"),
        ("output_tokens", "ask for fewer tokens"),
        ("kv_bytes", "send less, or ask for fewer tokens"),
    ],
)
def test_more_is_refused_naming_resource_value_limit_and_fix(name: str, fix: str) -> None:
    with pytest.raises(MediaTooLarge) as caught:
        refuse_if_over(ask_of(**{name: 1_000_001}), Resources(**{name: 1_000_000}), table="admission.request")
    assert str(caught.value) == (
        f"media_too_large: the request to chat needs {name} = 1,000,001; "
        f"limit: [admission.request] {name} = 1,000,000; fix: {fix}"
    )
    assert caught.value.http_status == 413


@pytest.mark.parametrize(
    ("vector", "cost"),
    [
        (ResourceVector(requests=1), 0.1),
        (ResourceVector(requests=1, decoded_pixels=500), 0.5),
        (ResourceVector(requests=10, decoded_pixels=500), 1.0),
        (ResourceVector(kv_bytes=10**12), LEAST_COST),
    ],
)
def test_cost_is_the_largest_share_of_any_limited_resource(vector: ResourceVector, cost: float) -> None:
    assert cost_of(vector, CAPACITY) == cost


def test_without_limits_every_request_costs_the_same() -> None:
    assert cost_of(ResourceVector(requests=1), Resources()) == LEAST_COST
