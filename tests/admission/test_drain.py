from __future__ import annotations

import pytest

from proteus.admission.drain import LEAST_HINT_S, RECENT, Drain


def drain_of(*admitted_s: float, max_wait_s: float = 30.0) -> Drain:
    drain = Drain(max_wait_s)
    drain.begin(0.0)
    for now_s in admitted_s:
        drain.admitted(now_s)
    return drain


def test_before_anyone_was_admitted_the_hint_is_the_longest_wait() -> None:
    assert drain_of().send_away(5.0) == 30.0


def test_places_of_those_sent_away_follow_each_other_at_the_rate_of_admission() -> None:
    drain = drain_of(0.5, 1.0, 1.5, 2.0)
    assert [drain.send_away(2.0) for _ in range(4)] == [0.5, 1.0, 1.5, 2.0]


def test_each_admission_makes_up_for_one_sent_away() -> None:
    drain = drain_of(1.0, 2.0)
    assert [drain.send_away(2.0) for _ in range(3)] == [1.0, 2.0, 3.0]
    drain.admitted(3.0)
    assert drain.send_away(3.0) == 3.0


def test_a_standstill_lengthens_the_hint() -> None:
    assert drain_of(1.0, 2.0).send_away(10.0) == 5.0


def test_the_hint_is_never_longer_than_the_longest_wait_nor_next_to_nothing() -> None:
    assert drain_of(1.0).send_away(500.0) == 30.0
    assert drain_of(0.0001, 0.0002).send_away(0.0002) == LEAST_HINT_S


def test_only_recent_admissions_make_the_rate() -> None:
    slow_then_fast = [100.0 * step for step in range(1, 6)] + [500.0 + 0.5 * step for step in range(1, RECENT + 1)]
    assert drain_of(*slow_then_fast).send_away(slow_then_fast[-1]) == pytest.approx(0.5)


def test_a_queue_that_was_empty_starts_anew() -> None:
    drain = drain_of(1.0, 2.0)
    drain.send_away(2.0)
    drain.begin(100.0)
    drain.admitted(101.0)
    assert drain.send_away(101.0) == 1.0


def test_until_the_first_admission_the_pace_is_that_of_the_last_busy_time() -> None:
    drain = drain_of(1.0, 2.0)
    drain.begin(100.0)
    assert drain.send_away(100.0) == 1.0


def test_admissions_that_took_no_time_tell_no_pace() -> None:
    drain = drain_of(1.0, 2.0)
    for now_s in (100.0, 200.0):
        drain.begin(now_s)
        drain.admitted(now_s)
    drain.begin(300.0)
    assert drain.send_away(300.0) == 1.0
