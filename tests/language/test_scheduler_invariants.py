"""The scheduler under any traffic: thousands of random traces, each answer judged by a plain model; nobody starves."""

from __future__ import annotations

import random
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proteus.language.task import LEAST_CHUNK, Modality, Task, share_of
from proteus.limits import LatencyClass
from tests.language.scheduler_world import CLASSES, MODALITIES, World, limits_of, random_task, task_of

POLICIES = ("auto", "pools", "ratio", "priority", "fifo")
NUM_TRACES = 2_500
SEEDS_A_TEST = 100


def cached_tokens(chance: random.Random, task: Task) -> int:
    """Whole blocks, and never all but one: the engine must leave the last chunk large enough."""
    if chance.random() < 0.5 or task.prompt_tokens <= LEAST_CHUNK:
        return 0
    return chance.randrange(task.prompt_tokens - LEAST_CHUNK + 1) // 4 * 4


def random_world(chance: random.Random) -> World:
    slots = chance.randrange(1, 6)
    limits = limits_of(
        chance.choice(POLICIES),
        iteration_tokens=chance.randrange(slots, 24),
        max_media_prefills=chance.randrange(1, 4),
        text_slots=chance.randrange(1, slots + 1),  # all of them: none is left for media
        max_media_slots=chance.randrange(1, slots + 1),
        media_aging_ms=chance.choice((0, 500, 2_000)),
        batch_aging_ms=chance.choice((0, 1_000, 10_000)),
    )
    return World(
        limits,
        slots=slots,
        max_queue=chance.randrange(1, 12),
        cached=lambda task: cached_tokens(chance, task),
        is_last=lambda task: chance.random() < 0.1,
    )


def one_event(chance: random.Random, world: World) -> None:
    kind = chance.random()
    if kind < 0.4:
        task = random_task(chance, world.now_s)
        if chance.random() < 0.03:
            world.stuck.add(task)
        world.submit(task)
    elif kind < 0.47:
        world.cancel(bytes([chance.randrange(24)]))
    elif kind < 0.5 and world.in_flight:
        world.end(chance.choice(world.in_flight))
    else:
        world.run(step_s=chance.choice((0.0, 0.05, 0.3)))


@pytest.mark.parametrize("first", range(0, NUM_TRACES, SEEDS_A_TEST))
def test_every_answer_is_right_in_random_traces(first: int) -> None:
    for seed in range(first, first + SEEDS_A_TEST):
        chance = random.Random(seed)
        world = random_world(chance)
        for _ in range(chance.randrange(5, 60)):
            one_event(chance, world)
        world.drain()


@settings(max_examples=60, deadline=None)
@given(chance=st.randoms(use_true_random=False), num_events=st.integers(1, 60))
def test_every_answer_is_right_in_traces_that_can_be_made_smaller(chance: random.Random, num_events: int) -> None:
    world = random_world(chance)
    for _ in range(num_events):
        one_event(chance, world)
    everything = set(world.in_flight)
    assert set(world.scheduler.end_all()) == everything
    world.scheduler.check()
    assert not world.scheduler.has_work()


@given(left=st.integers(1, 99), budget=st.integers(-3, 99), first=st.booleans(), whole=st.booleans())
def test_a_share_leaves_no_chunk_too_small_and_the_first_is_never_without(
    left: int, budget: int, first: bool, whole: bool
) -> None:
    share = share_of(left, budget, first=first, whole=whole)
    assert 0 <= share <= left
    assert share <= max(budget, 0) or (first and (whole or share < 2 * LEAST_CHUNK))
    assert share > 0 or not first
    assert share in (0, left) or (not whole and min(share, left - share) >= LEAST_CHUNK)


AGING_ITERATIONS = {"text": 20, "media": 20, "batch": 100}  # of 0.1 s; media that call themselves text age as media
SLOTS, MAX_QUEUE, ANSWER_TOKENS = 4, 12, 4
# Once the aging has passed, whoever comes has a later key; only lanes of the W that wait then can go first. The tag of
# each of these is at most W costs ahead of its lane, which moves by a cost / W or more with each placing: W² placings,
# and one of text after each. All hold a slot for their prefill behind those of the other slots, and for their answer.
MAX_WAIT_ITERATIONS = 2 * MAX_QUEUE**2 * (SLOTS + ANSWER_TOKENS)
COMPETITORS = st.lists(
    st.tuples(st.sampled_from(CLASSES), st.sampled_from(MODALITIES), st.sampled_from(["same", "other", "always new"])),
    min_size=1,
    max_size=5,
)


def flooded(world: World, competitors: list[tuple[LatencyClass, Modality, str]], room: int) -> None:
    names = count()
    for latency_class, modality, tenant in competitors * MAX_QUEUE:
        if len(world.waiting) >= MAX_QUEUE - room:
            return
        name = f"{len(world.ended)} {next(names)}" if tenant == "always new" else tenant
        world.submit(task_of(latency_class, name, visual=4 if modality == "media" else 0, answer=ANSWER_TOKENS))


@settings(max_examples=60, deadline=None)
@given(
    policy=st.sampled_from(POLICIES),
    competitors=COMPETITORS,
    latency_class=st.sampled_from(CLASSES),
    modality=st.sampled_from(MODALITIES),
)
def test_whoever_waits_gets_a_slot_and_an_answer_within_a_bound_whoever_keeps_coming(
    policy: str, competitors: list[tuple[LatencyClass, Modality, str]], latency_class: LatencyClass, modality: Modality
) -> None:
    world = World(limits_of(policy), slots=SLOTS, max_queue=MAX_QUEUE)
    flooded(world, competitors, room=1)
    world.run(10)
    probe = task_of(latency_class, "probe", visual=4 if modality == "media" else 0)
    flooded(world, competitors, room=1)
    world.submit(probe)
    bound = MAX_WAIT_ITERATIONS + AGING_ITERATIONS[latency_class]
    for _ in range(bound):
        world.run()
        if probe in world.ended:
            return
        flooded(world, competitors, room=0)
    pytest.fail(f"not answered after {bound} iterations")
