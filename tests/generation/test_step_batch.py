"""Who shares a call of the denoiser, and who waits: by table, and in random traces that a plain model judges."""

from __future__ import annotations

import random
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proteus.errors import DeadlineExceeded, InvalidRequest, QueueFull
from proteus.generation.bucket import BATCH_AGING_S, Drawing, Size
from proteus.generation.step_batch import MAX_REMEMBERED_CANCELS
from tests.generation.step_world import NEVER_AGED_MS, SIZES, World, drawing_of, limits_of, random_drawing

SMALL, LARGE = (8, 8), (12, 12)


def random_world(chance: random.Random) -> World:
    limits = limits_of(
        max_rows=chance.randrange(2, 9),
        live_images=chance.randrange(1, 7),
        max_queue=chance.randrange(0, 8),
        aging_ms=chance.choice((0, 50, 1_000, NEVER_AGED_MS)),
    )
    return World(limits, fails=lambda drawing: chance.random() < 0.02)


def one_event(chance: random.Random, world: World) -> None:
    kind = chance.random()
    if kind < 0.35:
        world.submit(random_drawing(chance, world.now_s))
    elif kind < 0.42:
        world.cancel(bytes([chance.randrange(40)]))
    else:
        world.run(call_s=chance.choice((0.0, 0.01, 0.1)))


@settings(max_examples=150, deadline=None)
@given(chance=st.randoms(use_true_random=False), num_events=st.integers(1, 120))
def test_every_turn_is_right_and_every_picture_gets_exactly_its_evaluations(
    chance: random.Random, num_events: int
) -> None:
    world = random_world(chance)
    for _ in range(num_events):
        one_event(chance, world)
    world.drain()
    assert all(world.computed[drawing] == drawing.evaluations for drawing in world.done)


@settings(max_examples=60, deadline=None)
@given(chance=st.randoms(use_true_random=False), num_events=st.integers(1, 60))
def test_all_can_be_ended_at_any_moment(chance: random.Random, num_events: int) -> None:
    world = random_world(chance)
    for _ in range(num_events):
        one_event(chance, world)
    assert set(world.batch.end_all()) == set(world.in_flight)
    world.batch.check()
    assert world.batch.num_in_flight == 0


@pytest.mark.parametrize(
    ("max_rows", "rows", "expected"),
    [
        (8, [2, 2, 2, 2], [0, 1, 2, 3]),
        (8, [1, 1, 1], [0, 1, 2]),
        (2, [2, 2], [0]),
        (3, [2, 2, 1], [0, 2]),
        (5, [1, 2, 2, 2], [0, 1, 2]),
        (4, [1, 2, 2, 1], [0, 1, 3]),
    ],
)
def test_a_call_has_whole_pictures_and_the_next_that_fits_fills_it(
    max_rows: int, rows: list[int], expected: list[int]
) -> None:
    world = World(limits_of(max_rows=max_rows))
    drawings = [drawing_of(rows=number) for number in rows]
    world.submit(*drawings)
    assert [drawings.index(drawing) for drawing in world.run().call] == expected


def test_a_newcomer_joins_at_the_next_call() -> None:
    world = World(limits_of())
    first, second = drawing_of(calls=20), drawing_of(calls=20)
    world.submit(first)
    world.run(3)
    world.submit(second)
    assert world.run().call == (first, second)


def test_pictures_of_a_full_bucket_get_on_evenly() -> None:
    world = World(limits_of(max_rows=6, live_images=5))
    drawings = [drawing_of(calls=99) for _ in range(5)]
    world.submit(*drawings)
    for _ in range(50):
        world.run()
        rows = [world.computed[drawing] for drawing in drawings]
        assert max(rows) - min(rows) <= 2


def test_a_small_picture_is_done_while_large_ones_fill_their_bucket() -> None:
    """30 large pictures of 50 steps take turns and wait; 4 steps of a small one come among theirs."""
    world = World(limits_of(max_rows=8, live_images=4, max_queue=26))
    world.submit(*(drawing_of(LARGE, calls=50) for _ in range(30)))
    world.run(5)
    small = drawing_of(SMALL)
    world.submit(small)
    world.run(5)
    assert small in world.done


@settings(max_examples=60, deadline=None)
@given(crowds=st.dictionaries(st.sampled_from(SIZES), st.integers(1, 6), min_size=2), max_rows=st.integers(2, 12))
def test_buckets_with_work_get_equal_shares_by_cost(crowds: dict[Size, int], max_rows: int) -> None:
    """However many pictures are in each: no two are further apart than one call of each."""
    world = World(limits_of(max_rows=max_rows, live_images=6))
    for size, number in crowds.items():
        world.submit(*(drawing_of(size, calls=10**6) for _ in range(number)))
    for _ in range(150):
        world.run()
        costs = [world.cost[size] for size in crowds]
        assert max(costs) - min(costs) <= 2 * max_rows * max(height * width for height, width in crowds)


@pytest.mark.parametrize("aging_ms", [0, NEVER_AGED_MS])
def test_sizes_that_come_and_go_do_not_hold_back_one_that_stays(aging_ms: int) -> None:
    """By cost or, where all are older than the aging, in turns."""
    world = World(limits_of(aging_ms=aging_ms))
    world.submit(drawing_of(LARGE, calls=10**6))
    guests = [size for size in SIZES if size != LARGE]
    num_turns = 300
    num_large = 0
    for _ in range(num_turns):
        for size in guests:
            if not world.live_of(size) and not world.waiting_of(size):
                world.submit(drawing_of(size, calls=1))
        num_large += world.run().call[0].size == LARGE
    if aging_ms:
        assert world.cost[LARGE] >= max(world.cost[size] for size in guests) - 2 * 2 * 16 * 16
    else:
        assert num_large >= num_turns // len(SIZES) - 1


def test_a_bucket_that_waited_longer_than_the_aging_goes_first() -> None:
    """Its share would make it wait for some calls of the others."""
    world = World(limits_of(aging_ms=25))
    world.submit(drawing_of((16, 16), calls=99), drawing_of(SMALL, rows=1, calls=99))
    sizes = [world.run(call_s=0.01).call[0].size for _ in range(40)]
    gaps = "".join("L" if size == (16, 16) else "s" for size in sizes).split("L")
    assert max(map(len, gaps)) <= 3


FLOODS = st.lists(
    st.tuples(st.sampled_from(SIZES), st.sampled_from(["same", "other", "always new"]), st.sampled_from([1, 2])),
    min_size=1,
    max_size=5,
)
LIVE, QUEUE, CALLS = 3, 9, 3
# Before it, all that wait in its bucket, and one more of each tenant that keeps coming new for each of those; each
# holds a place for its calls, and between two calls of its bucket come those of every other, by cost.
MAX_TURNS = (LIVE + QUEUE * 4) * CALLS * len(SIZES) * (2 * 8 * 16 * 16) // (1 * 8 * 8)


@settings(max_examples=40, deadline=None)
@given(floods=FLOODS, size=st.sampled_from(SIZES), aging_ms=st.sampled_from([0, 100, NEVER_AGED_MS]))
def test_whoever_waits_is_drawn_within_a_bound_whoever_keeps_coming(
    floods: list[tuple[Size, str, int]], size: Size, aging_ms: int
) -> None:
    world = World(limits_of(live_images=LIVE, max_queue=QUEUE, aging_ms=aging_ms))
    names = count()

    def flood(room: int) -> None:
        for size, tenant, rows in floods * QUEUE:
            if sum(max(0, len(world.live_of(s)) + len(world.waiting_of(s)) - LIVE) for s in SIZES) >= QUEUE - room:
                return
            name = str(next(names)) if tenant == "always new" else tenant
            world.submit(drawing_of(size, tenant=name, rows=rows, calls=CALLS))

    flood(room=1)
    world.run(5)
    flood(room=1)
    probe = drawing_of(size, tenant="probe", calls=CALLS)
    world.submit(probe)
    for _ in range(MAX_TURNS):
        flood(room=0)
        world.run()
        if probe in world.done:
            return
    pytest.fail(f"not drawn after {MAX_TURNS} turns")


def test_tenants_share_places_by_cost() -> None:
    world = World(limits_of(live_images=1, max_queue=40))
    crowd = [drawing_of(tenant="ann") for _ in range(20)]
    world.submit(*crowd, *(drawing_of(tenant="bob") for _ in range(2)))
    world.run(4 * 5)
    assert [drawing.tenant for drawing in world.done] == ["ann", "bob", "ann", "bob", "ann"]


def test_batch_waits_behind_media_until_it_is_older_by_the_aging() -> None:
    world = World(limits_of(live_images=1, max_queue=40))
    world.submit(drawing_of(calls=1), drawing_of(latency_class="batch", calls=1))
    for _ in range(3):
        world.submit(drawing_of(calls=1))
    world.run(4, call_s=0.0)
    assert [drawing.latency_class for drawing in world.done] == ["media"] * 4
    world.now_s += BATCH_AGING_S + 1
    world.submit(drawing_of(calls=1))
    world.run(2, call_s=0.0)
    assert [drawing.latency_class for drawing in world.done[4:]] == ["batch", "media"]


def test_a_queue_that_is_full_refuses_with_the_limit_but_not_what_need_not_wait() -> None:
    world = World(limits_of(live_images=2, max_queue=3))
    world.submit(*(drawing_of() for _ in range(5)))
    with pytest.raises(QueueFull, match=r"3 pictures wait.*\[denoiser\] max_queue = 3; fix: try again later"):
        world.batch.submit(drawing_of(), world.now_s)
    other = drawing_of(LARGE)
    world.batch.submit(other, world.now_s)
    assert other in world.batch.next(world.now_s).call + world.batch.next(world.now_s).call


def test_a_key_in_use_is_refused() -> None:
    world = World(limits_of())
    world.submit(drawing_of(key=b"k"))
    with pytest.raises(InvalidRequest, match="request_key is in use"):
        world.batch.submit(drawing_of(LARGE, key=b"k"), world.now_s)


def test_a_deadline_is_to_begin_and_not_to_end() -> None:
    world = World(limits_of(live_images=1))
    began = drawing_of(calls=50, deadline_s=world.now_s + 0.05)
    late = drawing_of(deadline_s=world.now_s + 0.05)
    world.submit(began, late)
    refused: list[Drawing] = []
    for _ in range(50):
        refused += [drawing for drawing, _ in world.run().refused]
    assert refused == [late]
    assert world.done == [began]
    with pytest.raises(DeadlineExceeded, match="not begun after 0 ms of waiting"):
        world.batch.submit(drawing_of(deadline_s=world.now_s), world.now_s)


def test_a_cancel_that_overtakes_its_picture_is_remembered_once() -> None:
    world = World(limits_of())
    world.cancel(b"k")
    drawing = drawing_of(key=b"k")
    world.submit(drawing)
    assert drawing.is_cancelled
    assert world.run().cancelled == (drawing,)
    again = drawing_of(key=b"k")
    world.submit(again)
    assert world.run().call == (again,)


def test_cancels_of_strangers_are_forgotten_in_the_end() -> None:
    world = World(limits_of())
    world.batch.cancel(b"mine")
    for number in range(MAX_REMEMBERED_CANCELS):
        world.batch.cancel(b"stranger %d" % number)
    mine = drawing_of(key=b"mine")
    world.submit(mine)
    assert world.run().call == (mine,)


def test_what_is_not_in_flight_cannot_end() -> None:
    world = World(limits_of())
    with pytest.raises(RuntimeError, match="not in flight"):
        world.batch.end(drawing_of())
