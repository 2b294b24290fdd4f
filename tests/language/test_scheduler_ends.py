from __future__ import annotations

from collections import Counter

import pytest

from proteus.errors import DeadlineExceeded, ProteusError, QueueFull, Stalled
from proteus.language.scheduler import MAX_IDLE, MAX_REMEMBERED_CANCELS
from proteus.language.task import Iteration
from tests.language.scheduler_world import computed, picture, scheduler_of, submitted, task_of

ENDLESS = 10**6
POLICIES = ("auto", "pools", "ratio", "priority", "fifo")


@pytest.mark.parametrize("policy", POLICIES)
def test_a_task_that_is_too_late_is_refused_before_it_costs_anything(policy: str) -> None:
    scheduler = scheduler_of(policy, slots=1)
    holder, late, other = task_of(), task_of(deadline_s=5.0), task_of()
    submitted(scheduler, holder, late, other)
    scheduler.next(4.9)
    scheduler.end(holder)
    iteration = scheduler.next(5.0)
    ((refused, error),) = iteration.refused
    assert refused is late and late.slot < 0 and iteration.placed == (other,)
    assert isinstance(error, DeadlineExceeded)
    assert str(error) == (
        "deadline_exceeded: no slot after 5,000 ms of waiting; limit: the request's deadline; "
        "fix: try again later, or allow more time"
    )


def test_a_deadline_is_to_get_a_slot_and_not_to_finish() -> None:
    scheduler = scheduler_of()
    (task,) = submitted(scheduler, task_of(deadline_s=1.0))
    computed(scheduler)
    assert computed(scheduler, now_s=9.0).decodes == (task,)


def test_what_cannot_be_taken_changes_nothing() -> None:
    scheduler = scheduler_of(slots=1, max_queue=2)
    first, *_ = submitted(scheduler, task_of(key=b"1"), task_of(key=b"2"))
    for task, error in ((task_of(key=b"1"), "in use"), (task_of(deadline_s=0.0), "no slot after 0 ms")):
        with pytest.raises(ProteusError, match=error):
            scheduler.submit(task, 0.0)
    submitted(scheduler, task_of(key=b"3"))
    with pytest.raises(QueueFull, match=r"3 requests .* slots \+ max_queue = 3"):
        scheduler.submit(task_of(), 0.0)
    scheduler.check()
    scheduler.end(first)
    assert scheduler.num_in_flight == 2


def test_a_cancelled_task_is_out_within_one_iteration_wherever_it_is() -> None:
    scheduler = scheduler_of(slots=2, iteration_tokens=10)
    tasks = submitted(scheduler, *(task_of(answer=ENDLESS) for _ in range(3)))
    while not computed(scheduler).decodes:
        pass
    decoding, prefilling, waiting = tasks
    for task in tasks:
        scheduler.cancel(task.key)
    (new,) = submitted(scheduler, task_of())
    iteration = scheduler.next(0.0)
    assert iteration.cancelled == (decoding, prefilling, waiting)
    assert iteration.placed == (new,) and new.slot == 0
    assert iteration.decodes == ()


def test_a_cancel_that_overtakes_its_task_stops_it_once() -> None:
    scheduler = scheduler_of()
    scheduler.cancel(b"key")
    (task,) = submitted(scheduler, task_of(key=b"key"))
    assert scheduler.next(0.0).cancelled == (task,)
    submitted(scheduler, task_of(key=b"key"))
    assert scheduler.next(0.0).cancelled == ()


def test_cancels_of_unknown_keys_are_forgotten_oldest_first() -> None:
    scheduler = scheduler_of()
    for number in range(MAX_REMEMBERED_CANCELS + 1):
        scheduler.cancel(number.to_bytes(2))
    first, second = submitted(scheduler, *(task_of(key=number.to_bytes(2)) for number in (0, 1)))
    assert scheduler.next(0.0).cancelled == (second,)
    assert first.slot == 0


def test_no_task_outgrows_what_was_reserved_for_it() -> None:
    scheduler = scheduler_of()
    (task,) = submitted(scheduler, task_of(prompt=8, answer=2))
    with pytest.raises(RuntimeError, match="before the prompt is in"):
        scheduler.generated(task)
    with pytest.raises(RuntimeError, match="8 tokens more than 0 of 8"):
        scheduler.prefilled(task, 8)
    scheduler.next(0.0)
    with pytest.raises(RuntimeError, match="9 tokens more than 0 of 8"):
        scheduler.prefilled(task, 9)
    assert scheduler.figures().kv_tokens == 10
    scheduler.prefilled(task, 8)
    scheduler.generated(task)
    scheduler.generated(task)
    with pytest.raises(RuntimeError, match="more than 2 of 2"):
        scheduler.generated(task)
    scheduler.end(task)
    with pytest.raises(RuntimeError, match="not in flight"):
        scheduler.end(task)
    assert scheduler.figures().kv_tokens == 0


@pytest.mark.parametrize("stuck_in", ["prefill", "decode"])
def test_a_task_that_gets_no_further_is_ended_and_the_others_go_on(stuck_in: str) -> None:
    scheduler = scheduler_of()
    stuck, other = submitted(scheduler, task_of(), task_of(answer=ENDLESS))
    scheduler.next(0.0)
    scheduler.prefilled(other, 8)
    if stuck_in == "decode":
        scheduler.prefilled(stuck, 8)
    iterations = 2
    while not (iteration := scheduler.next(0.0)).refused:
        scheduler.generated(other)
        iterations += 1
    ((task, error),) = iteration.refused
    assert task is stuck and isinstance(error, Stalled) and error.http_status == 500
    assert f"no progress in {MAX_IDLE} iterations, with {stuck.prefilled} of 8 prompt tokens in" in str(error)
    assert iterations == MAX_IDLE + (2 if stuck_in == "decode" else 1)
    assert iteration.decodes == (other,)


def test_waiting_for_others_prefills_is_no_standstill() -> None:
    scheduler = scheduler_of(iteration_tokens=4)
    submitted(scheduler, task_of(prompt=4 * MAX_IDLE * 2), patient := task_of("batch"))
    for _ in range(2 * MAX_IDLE):
        assert computed(scheduler).refused == ()
    assert computed(scheduler).chunks[0].task is patient


def test_what_can_never_be_placed_is_ended_at_once_instead_of_empty_passes() -> None:
    """Case 47: two large items, room for neither, 156,000 empty passes."""
    scheduler = scheduler_of("pools", slots=2, text_slots=2)
    tasks = submitted(scheduler, *(picture() for _ in range(2)))
    for task in tasks:
        ((refused, error),) = scheduler.next(0.0).refused
        assert refused is task
    assert isinstance(error, Stalled)
    assert str(error) == (
        "stalled: a request of 44 tokens can never get a slot, although all are free; "
        "limit: [llm.schedule] policy pools: 0 of 2 slots for media"
    )
    assert not scheduler.has_work()


def test_figures_tell_who_is_where() -> None:
    scheduler = scheduler_of("priority", slots=2, iteration_tokens=10)
    submitted(scheduler, task_of("text"), picture("batch"), task_of("media"), now_s=0.0)
    submitted(scheduler, task_of("text"), now_s=20.0)
    computed(scheduler)
    figures = scheduler.figures()
    assert figures.decoding == {"text": 1, "media": 0, "batch": 0}
    assert figures.prefilling == {"text": 0, "media": 1, "batch": 0}
    assert figures.waiting == {"text": 1, "media": 0, "batch": 1}
    assert (figures.kv_tokens, figures.policy) == (12 + 12, "priority")


def test_everything_can_be_ended_at_once() -> None:
    scheduler = scheduler_of(slots=1)
    tasks = submitted(scheduler, *(task_of() for _ in range(3)))
    scheduler.next(0.0)
    scheduler.cancel(tasks[1].key)
    assert scheduler.end_all() == list(tasks)
    scheduler.check()
    assert scheduler.next(0.0) == Iteration(refused=(), cancelled=(), placed=(), moved=(), decodes=(), chunks=())


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("_free", [1], "slots are lost or taken twice"),
        ("_kv_tokens", 1, "1 tokens are reserved"),
        ("_prefilling", [], "who prefills"),
        ("_num_running", Counter(media=1), "by the count of each modality"),
        ("_to_cancel", {b"gone"}, "a cancel is pending"),
        ("_in_flight", {}, "0 in flight"),
    ],
)
def test_check_sees_books_that_do_not_add_up(field: str, value: object, said: str) -> None:
    scheduler = scheduler_of()
    submitted(scheduler, task_of(), task_of())
    scheduler.next(0.0)
    scheduler.check()
    setattr(scheduler, field, value)
    with pytest.raises(RuntimeError, match=said):
        scheduler.check()


def test_check_sees_a_task_that_waits_and_has_a_slot() -> None:
    scheduler = scheduler_of(slots=1)
    _, waiting = submitted(scheduler, task_of(), task_of())
    scheduler.next(0.0)
    waiting.slot = 0
    with pytest.raises(RuntimeError, match="waits in another's lane, or has a slot"):
        scheduler.check()
