from __future__ import annotations

from proteus.language.scheduler import MOVED_FROM_TOKENS
from proteus.language.task import Move
from tests.language.scheduler_world import computed, scheduler_of, submitted, task_of


def test_an_answer_moves_from_the_highest_slot_to_one_that_is_left_free_below() -> None:
    scheduler = scheduler_of()
    first, second, third = submitted(scheduler, *(task_of(prompt=2, answer=40) for _ in range(3)))
    while len(computed(scheduler).decodes) < 3:
        pass
    scheduler.end(first)
    iteration = scheduler.next(0.0)
    assert iteration.moved == (Move(task=third, source=2),)
    assert (second.slot, third.slot) == (1, 0)
    assert set(iteration.decodes) == {second, third}
    assert scheduler.next(0.0).moved == ()
    scheduler.check()


def test_who_waits_gets_the_free_slot_and_nobody_moves() -> None:
    scheduler = scheduler_of(slots=3)
    first, *_, waiting = submitted(scheduler, *(task_of(prompt=2, answer=40) for _ in range(4)))
    while len(computed(scheduler).decodes) < 3:
        pass
    scheduler.end(first)
    iteration = scheduler.next(0.0)
    assert (iteration.placed, iteration.moved, waiting.slot) == ((waiting,), (), 0)


def test_an_answer_that_soon_ends_stays_where_it_is() -> None:
    scheduler = scheduler_of()
    first, second = submitted(scheduler, task_of(prompt=2, answer=40), task_of(prompt=2, answer=MOVED_FROM_TOKENS))
    while len(computed(scheduler).decodes) < 2:
        pass
    scheduler.end(first)
    assert scheduler.next(0.0).moved == ()
    assert second.slot == 1
