from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from proteus.language.task import Task
from tests.language.scheduler_world import World, computed, limits_of, picture, scheduler_of, shares, submitted, task_of

ENDLESS = 10**6


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


@pytest.mark.parametrize("make", [picture, task_of])
def test_text_has_every_other_turn_when_more_comes_than_can_be_served(make: Callable[..., Task]) -> None:
    """All that waits is older than its aging by then: by age alone, text would be behind all of it."""
    scheduler = scheduler_of(slots=1)
    old = [*submitted(scheduler, *(make("batch", "flood") for _ in range(5)))]
    new = [*submitted(scheduler, task_of(), task_of(), now_s=60.0)]
    placed = []
    for _ in range(7):
        placed += scheduler.next(60.0).placed
        scheduler.end(placed[-1])
    assert placed == [old[0], new[0], old[1], new[1], *old[2:]]


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
