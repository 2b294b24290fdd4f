from __future__ import annotations

import math

import numpy as np
import pytest

from proteus.errors import BrokenModel
from proteus.language.health import CONSTANT_EVERY, STUCK_AFTER, Health


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 7, 49])
def test_one_value_that_is_not_finite_is_enough(value: float, place: int) -> None:
    row = np.linspace(-3, 3, 50, dtype=np.float32)
    row[place] = value
    assert Health().check(int(row.argmax()), float(row.max()), float(row.min())) == "logits are not finite"


def test_a_row_without_any_possible_token_is_broken() -> None:
    assert Health().check(0, -math.inf, -math.inf) == "logits are not finite"


def test_a_masked_token_is_not_broken() -> None:
    assert Health().check(3, 1.0, -math.inf) is None


def test_equal_logits_are_broken() -> None:
    assert Health().check(0, 0.0, 0.0) == "all logits are equal"


def test_the_lowest_logit_is_wanted_at_the_first_token_and_now_and_then() -> None:
    health, wanted = Health(), []
    for token in range(2 * CONSTANT_EVERY + 1):
        if health.wants_lowest:
            wanted.append(token)
        assert health.check(1, float(token)) is None
    assert wanted == [0, CONSTANT_EVERY, 2 * CONSTANT_EVERY]


def stuck_at(lowests: list[float], health: Health | None = None) -> int | None:
    """The token, from 0, at which a best logit that never moves is called stuck."""
    health = health or Health()
    for token, lowest in enumerate(lowests):
        if health.check(5, 12.5, lowest if health.wants_lowest else None) is not None:
            return token
    return None


def test_a_row_that_does_not_move_is_stuck_after_a_while() -> None:
    assert stuck_at([-1.0] * 200) == STUCK_AFTER - 1
    health = Health()
    for _ in range(STUCK_AFTER - 1):
        assert health.check(5, 12.5, -1.0) is None
    assert health.check(5, 12.5, -1.0) == f"token 5 had the logit 12.5 {STUCK_AFTER} times in a row"


def test_a_best_logit_that_rounding_keeps_is_not_stuck_while_the_lowest_moves() -> None:
    assert stuck_at([-1.0 - token // 10 for token in range(500)]) is None
    assert stuck_at([-math.inf] * 200) == STUCK_AFTER - 1  # a masked token says nothing


@pytest.mark.parametrize("other", [(6, 12.5), (5, math.nextafter(12.5, 13))])
def test_another_token_or_another_last_bit_in_between_is_a_sign_of_life(other: tuple[int, float]) -> None:
    health = Health()
    for _ in range(3):
        for _ in range(STUCK_AFTER - 1):
            assert health.check(5, 12.5, -1.0 if health.wants_lowest else None) is None
        assert health.check(*other) is None


def test_the_error_for_it_says_what_to_do_and_nothing_of_what_was_seen() -> None:
    error = BrokenModel()
    assert str(error).startswith("model_output_invalid: ") and error.http_status == 500
    assert "fix: " in str(error.about("answer 2"))
