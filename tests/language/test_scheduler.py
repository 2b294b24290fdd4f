from __future__ import annotations

from collections import Counter

import pytest

from proteus.errors import DeadlineExceeded, ProteusError, QueueFull, Stalled
from proteus.language.scheduler import MAX_IDLE, MAX_REMEMBERED_CANCELS, Scheduler
from proteus.language.task import Iteration, Task
from tests.language.scheduler_world import World, limits_of, task_of

ENDLESS = 10**6
POLICIES = ("auto", "pools", "ratio", "priority", "fifo")


def scheduler_of(policy: str = "priority", *, slots: int = 4, max_queue: int = 100, **changes: int) -> Scheduler:
    return Scheduler(limits_of(policy, **changes), slots=slots, max_queue=max_queue)


def submitted(scheduler: Scheduler, *tasks: Task, now_s: float = 0.0) -> tuple[Task, ...]:
    for task in tasks:
        scheduler.submit(task, now_s)
    return tasks


def computed(scheduler: Scheduler, now_s: float = 0.0) -> Iteration:
    """One iteration, done as it says."""
    iteration = scheduler.next(now_s)
    for task in iteration.decodes:
        scheduler.generated(task)
    for chunk in iteration.chunks:
        scheduler.prefilled(chunk.task, chunk.due)
        if chunk.task.prefilled == chunk.task.prompt_tokens:
            scheduler.generated(chunk.task)
    return iteration


def shares(iteration: Iteration) -> list[tuple[Task, int]]:
    return [(chunk.task, chunk.tokens) for chunk in iteration.chunks]


def picture(latency_class: str = "media", tenant: str = "ann", prompt: int = 40, answer: int = 4) -> Task:
    return task_of(latency_class, tenant, prompt=prompt, visual=prompt - 4, answer=answer)  # type: ignore[arg-type]


def test_everyone_whose_prompt_is_in_decodes_and_the_rest_of_the_budget_is_prefill() -> None:
    scheduler = scheduler_of(iteration_tokens=16)
    first, second = submitted(scheduler, task_of(prompt=8, answer=9), task_of(prompt=8, answer=9))
    assert shares(computed(scheduler)) == [(first, 8), (second, 8)]
    (third,) = submitted(scheduler, task_of(prompt=60))
    for left in (60, 46, 32, 18):
        iteration = computed(scheduler)
        assert iteration.decodes == (first, second)
        assert shares(iteration) == [(third, 14)] and third.prefilled == 60 - left + 14
    assert shares(computed(scheduler)) == [(third, 4)]
    assert computed(scheduler).decodes == (first, second, third)


@pytest.mark.parametrize(
    ("prompt", "chunks"),
    [(1, [1]), (2, [2]), (8, [8]), (9, [7, 2]), (10, [8, 2]), (17, [8, 7, 2]), (3, [3])],
)
def test_no_chunk_is_a_single_token_unless_the_prompt_is(prompt: int, chunks: list[int]) -> None:
    scheduler = scheduler_of(iteration_tokens=8)
    submitted(scheduler, task_of(prompt=prompt))
    assert [computed(scheduler).chunks[0].tokens for _ in chunks] == chunks
    assert not scheduler.next(0.0).chunks


def test_a_prefill_goes_on_whatever_the_decodes_leave() -> None:
    scheduler = scheduler_of(iteration_tokens=3)
    submitted(scheduler, *(task_of(prompt=2, answer=ENDLESS) for _ in range(3)))
    while len(computed(scheduler).decodes) < 3:
        pass
    (task,) = submitted(scheduler, task_of(prompt=5))
    assert shares(computed(scheduler)) == [(task, 2)]
    assert shares(computed(scheduler)) == [(task, 3)]


def test_tokens_that_the_prefix_cache_gave_are_not_computed_and_leave_no_single_one() -> None:
    scheduler = scheduler_of(iteration_tokens=24)
    (task,) = submitted(scheduler, task_of(prompt=41))
    (chunk,) = scheduler.next(0.0).chunks
    scheduler.prefilled(task, 16)
    assert (chunk.tokens, chunk.due) == (24, 23)
    scheduler.prefilled(task, chunk.due)
    assert shares(scheduler.next(0.0)) == [(task, 2)]


def test_text_prefills_before_media_and_media_before_batch() -> None:
    scheduler = scheduler_of(iteration_tokens=100)
    batch, media, text = submitted(scheduler, task_of("batch"), picture(), task_of("text"))
    assert [chunk.task for chunk in scheduler.next(0.0).chunks] == [text, media, batch]


def test_few_requests_with_media_prefill_at_once_and_they_hold_no_text_up() -> None:
    scheduler = scheduler_of(iteration_tokens=100, max_media_prefills=2)
    first, second, third, batch = submitted(scheduler, picture(), picture(), picture(), task_of("batch"))
    assert [chunk.task for chunk in scheduler.next(0.0).chunks] == [first, second, batch]
    scheduler.end(first)
    assert [chunk.task for chunk in scheduler.next(0.0).chunks] == [second, third, batch]


def test_a_media_prefill_that_is_alone_has_the_whole_iteration() -> None:
    scheduler = scheduler_of(iteration_tokens=30)
    first, _ = submitted(scheduler, picture(), picture())
    assert shares(scheduler.next(0.0)) == [(first, 30)]


def test_the_lowest_free_slot_is_taken_first() -> None:
    scheduler = scheduler_of(slots=3)
    tasks = submitted(scheduler, *(task_of() for _ in range(5)))
    scheduler.next(0.0)
    assert [task.slot for task in tasks] == [0, 1, 2, -1, -1]
    scheduler.end(tasks[2])
    scheduler.end(tasks[0])
    assert [task.slot for task in scheduler.next(0.0).placed] == [0, 2]


@pytest.mark.parametrize(("waited_s", "first"), [(1.9, "text"), (2.1, "media")])
def test_media_that_waited_long_enough_get_a_slot_before_newer_text(waited_s: float, first: str) -> None:
    scheduler = scheduler_of(slots=1)
    (holder,) = submitted(scheduler, task_of())
    scheduler.next(0.0)
    submitted(scheduler, picture())
    submitted(scheduler, task_of("text"), now_s=waited_s)
    scheduler.end(holder)
    (placed,) = scheduler.next(waited_s).placed
    assert placed.latency_class == first


def test_media_that_call_themselves_text_wait_like_media() -> None:
    scheduler = scheduler_of(slots=1)
    sly, honest = submitted(scheduler, picture("text"), task_of("text"))
    assert scheduler.next(0.0).placed == (honest,)
    assert sly.slot < 0


def test_batch_takes_what_is_free_and_waits_behind_the_others_otherwise() -> None:
    scheduler = scheduler_of(slots=2)
    first, second, third = submitted(scheduler, *(task_of("batch") for _ in range(3)))
    assert scheduler.next(0.0).placed == (first, second)
    (text,) = submitted(scheduler, task_of("text"), now_s=9.0)
    scheduler.end(first)
    assert scheduler.next(9.0).placed == (text,)
    scheduler.end(second)
    assert scheduler.next(9.0).placed == (third,)


def test_tenants_share_slots_by_what_they_reserve() -> None:
    scheduler = scheduler_of(slots=1)
    for _ in range(40):
        submitted(scheduler, task_of(tenant="large", prompt=30, answer=10), task_of(tenant="small", prompt=6, answer=4))
    served: Counter[str] = Counter()
    for _ in range(50):
        (task,) = scheduler.next(0.0).placed
        served[task.tenant] += 1
        scheduler.end(task)
    assert served == pytest.approx({"large": 10, "small": 40}, abs=1)


@pytest.mark.parametrize(
    ("policy", "num_text", "num_media"), [("pools", 2, 2), ("ratio", 4, 2), ("priority", 4, 4), ("fifo", 4, 4)]
)
def test_a_modality_has_as_many_slots_as_the_policy_says(policy: str, num_text: int, num_media: int) -> None:
    for make, number in ((task_of, num_text), (picture, num_media)):
        scheduler = scheduler_of(policy, text_slots=2, max_media_slots=2)
        submitted(scheduler, *(make("batch") for _ in range(9)))
        assert len(scheduler.next(0.0).placed) == number


@pytest.mark.parametrize("policy", ["pools", "ratio"])
def test_what_a_cap_holds_up_stands_in_nobody_elses_way(policy: str) -> None:
    scheduler = scheduler_of(policy)
    submitted(scheduler, *(picture("batch") for _ in range(5)))
    text = submitted(scheduler, *(task_of("batch") for _ in range(2)))
    assert set(scheduler.next(0.0).placed) >= set(text)


def test_fifo_goes_by_arrival_alone_and_cuts_no_prompt() -> None:
    scheduler = scheduler_of("fifo", iteration_tokens=50, slots=5)
    kinds = (picture("batch", "ann"), picture("media", "ann"), task_of("text", "bob"), task_of(prompt=60), task_of())
    tasks = submitted(scheduler, *kinds)
    assert scheduler.next(0.0).placed == tasks
    assert shares(computed(scheduler)) == [(tasks[0], 40)]
    assert shares(computed(scheduler)) == [(tasks[1], 40), (tasks[2], 8)]
    assert shares(computed(scheduler)) == [(tasks[3], 60)]
    assert shares(computed(scheduler)) == [(tasks[4], 8)]


def text_wait(policy: str) -> int:
    """Iterations to the first token of a short text, the most of many, in the middle of a storm of pictures so long
    that all of them have aged before they got a slot.
    """
    world = World(limits_of(policy, iteration_tokens=20), max_queue=40)
    worst = 0
    for _ in range(60):
        world.submit(*(picture(tenant="storm", prompt=60) for _ in range(36 - len(world.waiting))))
        world.run(7, step_s=0.2)
        text = task_of("text", prompt=16, answer=2)
        world.submit(text)
        waited = 0
        while not text.generated:
            world.run(step_s=0.2)
            waited += 1
        worst = max(worst, waited)
        while text not in world.ended:
            world.run(step_s=0.2)
    return worst


@pytest.mark.parametrize("policy", ["auto", "pools", "ratio"])
def test_text_answers_in_one_iteration_whatever_storm_of_media(policy: str) -> None:
    assert text_wait(policy) == 1


def test_text_waits_for_the_storm_without_a_policy() -> None:
    assert text_wait("fifo") > 20


def test_auto_keeps_pools_while_half_of_the_traffic_is_media_and_evicts_nobody() -> None:
    scheduler = scheduler_of("auto", slots=4, max_queue=ENDLESS, max_media_slots=3, text_slots=2)
    running = submitted(scheduler, *(picture(answer=ENDLESS) for _ in range(3)))
    scheduler.next(0.0)
    assert scheduler.figures().policy == "ratio"
    submitted(scheduler, *(picture() for _ in range(64)))
    assert scheduler.figures().policy == "pools"
    scheduler.next(0.0)
    assert [task.slot for task in running] == [0, 1, 2]
    scheduler.end(running[0])
    assert scheduler.next(0.0).placed == ()
    submitted(scheduler, *(task_of() for _ in range(30)))
    assert scheduler.figures().policy == "pools"
    submitted(scheduler, *(task_of() for _ in range(60)))
    assert scheduler.figures().policy == "ratio"


def test_auto_does_not_switch_to_and_fro_near_one_half() -> None:
    scheduler = scheduler_of("auto", max_queue=ENDLESS)
    names = []
    for _ in range(300):
        submitted(scheduler, picture(), picture(), task_of(), task_of())
        names.append(scheduler.figures().policy)
    assert len({*zip(names, names[1:], strict=False)} - {("ratio", "ratio"), ("pools", "pools")}) == 1


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
        "deadline_exceeded: no slot after 5.0 s of waiting; limit: the request's deadline; "
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
    for task, error in ((task_of(key=b"1"), "in use"), (task_of(deadline_s=0.0), "no slot after 0.0 s")):
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
    assert scheduler.next(0.0) == Iteration(refused=(), cancelled=(), placed=(), decodes=(), chunks=())


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
