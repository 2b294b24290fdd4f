from __future__ import annotations

from proteus.cache.breaker import FIRST_PAUSE_S, LONGEST_PAUSE_S, Breaker


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_what_works_is_always_asked() -> None:
    breaker = Breaker(Clock())
    for _ in range(3):
        assert breaker.may_try()
        assert not breaker.worked()


def test_after_each_attempt_that_fails_the_pause_is_twice_as_long_up_to_the_longest() -> None:
    clock = Clock()
    breaker = Breaker(clock)
    assert breaker.failed()
    pauses = []
    for _ in range(7):
        begun_s = clock.now_s
        while not breaker.may_try():
            clock.now_s += 0.5
        pauses.append(clock.now_s - begun_s)
        assert not breaker.failed(), "no news"
    assert pauses == [FIRST_PAUSE_S, 2.0, 4.0, 8.0, 16.0, LONGEST_PAUSE_S, LONGEST_PAUSE_S]


def test_questions_that_fail_together_count_as_one() -> None:
    clock = Clock()
    breaker = Breaker(clock)
    assert [breaker.failed() for _ in range(8)] == [True] + [False] * 7
    clock.now_s = FIRST_PAUSE_S
    assert breaker.may_try()


def test_after_a_pause_one_goes_ahead_and_the_others_wait_for_what_it_hears() -> None:
    clock = Clock()
    breaker = Breaker(clock)
    breaker.failed()
    clock.now_s = FIRST_PAUSE_S
    assert [breaker.may_try() for _ in range(3)] == [True, False, False]
    assert breaker.is_open
    assert breaker.worked()
    assert [breaker.may_try() for _ in range(3)] == [True, True, True]
    assert not breaker.is_open


def test_an_attempt_of_which_nothing_is_heard_is_followed_by_another() -> None:
    clock = Clock()
    breaker = Breaker(clock)
    breaker.failed()
    clock.now_s = FIRST_PAUSE_S
    assert breaker.may_try()
    clock.now_s += FIRST_PAUSE_S
    assert breaker.may_try()
