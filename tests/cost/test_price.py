"""A price is exact: what the table says, times what was used."""

from __future__ import annotations

import json
from dataclasses import fields
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proteus.cost.price import Used, price
from proteus.cost.vector import ResourceVector
from proteus.limits_gateway import Prices

RATES = {
    "per_thousand_text_tokens": 0.0002,
    "per_thousand_visual_tokens": 0.0004,
    "per_thousand_cached_tokens": 0.00005,
    "per_thousand_output_tokens": 0.0008,
    "per_picture": 0.0001,
    "per_drawn_picture": 0.0005,
    "per_million_token_passes": 0.002,
}
PRICES = Prices(currency="EUR", **RATES)
NAMES = tuple(field.name for field in fields(Used))
COUNTS = st.builds(Used, **dict.fromkeys(NAMES, st.integers(0, 10**9)))


@pytest.mark.parametrize(
    ("used", "amount"),
    [
        (Used(), "0"),
        (Used(text_tokens=1), "0.0000002"),
        (Used(visual_tokens=36), "0.0000144"),
        (Used(cached_text_tokens=8, cached_visual_tokens=2), "0.0000005"),
        (Used(output_tokens=1_000), "0.0008"),
        (Used(pictures=3), "0.0003"),
        (Used(drawn_pictures=2, token_passes=1_000_000), "0.003"),
        (Used(text_tokens=10**12), "200000"),
    ],
)
def test_each_thing_has_its_rate(used: Used, amount: str) -> None:
    assert price(PRICES, used).amount == Decimal(amount)


def test_figures_are_per_picture_and_per_thousand_tokens() -> None:
    asked = price(PRICES, Used(text_tokens=20, visual_tokens=72, output_tokens=8, pictures=2))
    assert asked.amount == Decimal("0.0000040") + Decimal("0.0002288") + Decimal("0.0000064")
    assert asked.per_picture == Decimal("0.0001144")
    assert asked.per_thousand_tokens == asked.amount * 10
    drawn = price(PRICES, Used(text_tokens=9, drawn_pictures=2, token_passes=1_280))
    assert (drawn.per_picture, drawn.per_thousand_tokens) == (Decimal("0.00050218"), None)
    free = price(PRICES.model_copy(update=dict.fromkeys(RATES, 0.0)), Used(drawn_pictures=2))
    assert free.per_picture == 0
    nothing = price(PRICES, Used())
    assert (nothing.per_picture, nothing.per_thousand_tokens) == (None, None)


def test_the_document_has_the_numbers_as_the_table_would_write_them() -> None:
    document = price(PRICES, Used(text_tokens=3, output_tokens=7, pictures=1)).document()
    assert json.dumps(document["amount"]) == "0.0001062"
    assert document == {
        "currency": "EUR",
        "amount": 0.0001062,
        "per_picture": 0.0001,
        "per_thousand_tokens": 0.01062,
    }


@given(COUNTS, COUNTS)
def test_two_requests_cost_what_they_cost_together(one: Used, other: Used) -> None:
    both = Used(**{name: getattr(one, name) + getattr(other, name) for name in NAMES})
    assert price(PRICES, one).amount + price(PRICES, other).amount == price(PRICES, both).amount


@given(
    text=st.integers(0, 999),
    visual=st.integers(0, 999),
    cached_text=st.integers(0, 999),
    cached_visual=st.integers(0, 999),
    output=st.integers(0, 99),
    unused=st.integers(0, 99),
    pictures=st.integers(0, 4),
)
def test_what_was_used_never_costs_more_than_the_most(
    text: int, visual: int, cached_text: int, cached_visual: int, output: int, unused: int, pictures: int
) -> None:
    vector = ResourceVector(
        text_tokens=text + cached_text,
        visual_tokens=visual + cached_visual,
        output_tokens=output + unused,
        items=pictures,
    )
    usage = {
        "text_tokens": text + cached_text,
        "visual_tokens": visual + cached_visual,
        "cached_tokens": cached_text + cached_visual,
        "output_tokens": output,
    }
    used = Used.of_answer(usage, pictures=pictures, cached_visual_tokens=cached_visual)
    assert used.tokens == usage["text_tokens"] + usage["visual_tokens"] + output
    assert (used.text_tokens, used.cached_text_tokens) == (text, cached_text)
    assert price(PRICES, used).amount <= price(PRICES, Used.at_most(vector)).amount


def test_a_whole_drawing_costs_the_most_that_was_told() -> None:
    vector = ResourceVector(text_tokens=9, images=2, token_passes=640)
    usage = {"text_tokens": 9, "images": 2, "token_passes": 640}
    assert price(PRICES, Used.of_drawing(usage)) == price(PRICES, Used.at_most(vector))
