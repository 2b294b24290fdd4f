"""The store of prefix blocks against a model that knows of each block only when it was used last."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from proteus.language.prefix import Chain, Link
from proteus.language.prefix_cache import MOST_EXPIRED_AT_ONCE, Block, PrefixCache
from proteus.limits import PrefixCache as PrefixLimits

SHAPE = (2, 2, 1, 4, 2)  # keys and values, layers, heads, tokens, width
BLOCK_BYTES = 2 * 2 * 1 * 4 * 2 * 4
MAX_AGE_S = 10.0
Path = tuple[int, ...]  # one number for each block: where prompts branch


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def cache_of(num_blocks: int, clock: Clock | None = None, *, spare_bytes: int = 0) -> PrefixCache:
    limits = PrefixLimits(block_tokens=4, max_bytes=num_blocks * BLOCK_BYTES + spare_bytes, max_age_s=MAX_AGE_S)
    return PrefixCache(limits, block_shape=SHAPE, clock_s=clock or Clock())


def links(path: Path) -> Chain:
    """What `chain` gives: a link for each block, whose digest stands for all before it."""
    return tuple(Link(bytes(path[: number + 1]), bytes([step])) for number, step in enumerate(path))


def block_of(path: Path) -> Block:
    """A block whose values tell where it stands."""
    return np.full(SHAPE, sum((step + 1) * 7**depth for depth, step in enumerate(path)) % 8191, dtype=np.float32)


def blocks_of(path: Path) -> Callable[[int], Block]:
    return lambda number: block_of(path[: number + 1])


def keep(cache: PrefixCache, path: Path, num_blocks: int | None = None) -> None:
    cache.keep(links(path), len(path) if num_blocks is None else num_blocks, blocks_of(path))
    cache.check()


def num_found(cache: PrefixCache, path: Path, start: int = 0) -> int:
    """How many blocks `find` gives, each of them checked against the place it must come from."""
    found = cache.find(links(path), start)
    for number, block in enumerate(found, start):
        assert np.array_equal(block, block_of(path[: number + 1]))
    cache.check()
    return len(found)


class AgainstModel(RuleBasedStateMachine):
    """Live blocks of the model: those that were used within the age, the least recently used and deepest dropped."""

    paths = st.lists(st.integers(0, 2), min_size=1, max_size=5).map(tuple)

    @initialize(capacity=st.integers(0, 7))
    def start(self, capacity: int) -> None:
        self.clock, self.capacity = Clock(), capacity
        self.cache = cache_of(capacity, self.clock)
        self.uses: dict[Path, tuple[int, float]] = {}  # number of the call, time
        self.num_calls = 0

    def forget_old(self) -> None:
        self.uses = {
            path: (call, at_s) for path, (call, at_s) in self.uses.items() if at_s >= self.clock.now_s - MAX_AGE_S
        }

    def use(self, path: Path) -> None:
        self.num_calls += 1
        for depth in range(1, len(path) + 1):
            self.uses[path[:depth]] = (self.num_calls, self.clock.now_s)

    @rule(path=paths, data=st.data())
    def keep(self, path: Path, data: st.DataObject) -> None:
        path = path[: data.draw(st.integers(0, len(path)))]
        keep(self.cache, path)
        self.forget_old()
        own = path[: self.capacity]
        self.use(own)
        while len(self.uses) > self.capacity:
            oldest = min(self.uses, key=lambda held: (self.uses[held][0], -len(held)))
            assert oldest != own[: len(oldest)]
            del self.uses[oldest]

    @rule(path=paths, data=st.data())
    def find(self, path: Path, data: st.DataObject) -> None:
        start = data.draw(st.integers(0, len(path)))
        self.forget_old()
        stop = start
        while stop < len(path) and path[: stop + 1] in self.uses:
            stop += 1
        assert num_found(self.cache, path, start) == stop - start
        if stop > start:
            self.use(path[:stop])

    @rule(seconds=st.sampled_from([0.0, 1.0, 9.0, 10.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.clock.now_s += seconds

    @rule()
    def clear(self) -> None:
        self.cache.clear()
        self.uses.clear()

    @invariant()
    def memory_is_kept(self) -> None:
        figures = self.cache.figures()
        self.forget_old()
        assert len(self.uses) <= figures.held_blocks <= self.capacity
        assert figures.held_bytes == figures.held_blocks * BLOCK_BYTES <= figures.capacity_bytes


TestAgainstModel = AgainstModel.TestCase
TestAgainstModel.settings = settings(max_examples=300, stateful_step_count=30, deadline=None)


def test_blocks_come_back_as_far_as_prompts_are_alike() -> None:
    cache = cache_of(8)
    keep(cache, (1, 2, 3))
    assert num_found(cache, (1, 2, 3)) == 3
    assert num_found(cache, (1, 2, 4, 3)) == 2
    assert num_found(cache, (2, 2, 3)) == 0
    assert num_found(cache, (1, 2, 3), start=1) == 2
    assert num_found(cache, (1, 2, 3), start=3) == 0


def test_what_is_kept_is_a_copy() -> None:
    cache = cache_of(1)
    block = block_of((1,))
    cache.keep(links((1,)), 1, lambda number: block)
    block.fill(9)
    assert num_found(cache, (1,)) == 1


def test_a_prompt_that_is_half_computed_is_kept_as_far_as_it_is() -> None:
    """Its donor may end there: aborted, failed or cancelled."""
    cache = cache_of(8)
    keep(cache, (1, 2, 3, 4), 2)
    assert num_found(cache, (1, 2, 3, 4)) == 2
    keep(cache, (1, 2, 3, 4), 4)
    assert num_found(cache, (1, 2, 3, 4)) == 4


def test_only_missing_blocks_are_asked_for() -> None:
    cache, asked = cache_of(8), []

    def block_at(number: int) -> Block:
        asked.append(number)
        return block_of((1, 2, 3)[: number + 1])

    for num_blocks in (1, 3, 3):
        cache.keep(links((1, 2, 3)), num_blocks, block_at)
    assert asked == [0, 1, 2]


def test_the_least_recently_used_prompt_goes_first_and_its_leaf_before_its_root() -> None:
    cache = cache_of(4)
    keep(cache, (1, 1))
    keep(cache, (2, 2))
    assert num_found(cache, (1, 1)) == 2
    keep(cache, (3,))
    assert num_found(cache, (2, 2)) == 1
    keep(cache, (4,))
    keep(cache, (5,))
    assert num_found(cache, (2, 2)) == 1  # it was used again, the prompt 1 was not
    assert num_found(cache, (1, 1)) == 0


def test_a_prompt_longer_than_the_memory_keeps_its_head_and_lasts() -> None:
    cache = cache_of(3)
    for _ in range(3):
        keep(cache, (1, 2, 3, 4, 5))
        assert num_found(cache, (1, 2, 3, 4, 5)) == 3
    assert cache.figures().kept_blocks == 3


def test_a_block_is_kept_again_with_those_before_it_when_they_were_evicted_meanwhile() -> None:
    cache = cache_of(2)
    keep(cache, (1, 1, 1), 1)
    keep(cache, (2, 2))
    keep(cache, (1, 1, 1), 2)
    assert num_found(cache, (1, 1, 1)) == 2


def test_age_counts_from_the_last_use() -> None:
    clock = Clock()
    cache = cache_of(4, clock)
    keep(cache, (1, 1))
    clock.now_s = 10.0
    assert num_found(cache, (1,)) == 1
    clock.now_s = 20.0
    assert num_found(cache, (1, 1)) == 1
    clock.now_s = 30.5
    assert num_found(cache, (1,)) == 0


def test_the_old_are_dropped_a_bounded_number_at_a_time_and_found_no_more_from_the_first_on() -> None:
    clock = Clock()
    cache = cache_of(200, clock)
    path = tuple(range(150))
    keep(cache, path)
    clock.now_s = 11.0
    assert num_found(cache, path) == 0
    held = []
    for _ in range(4):
        keep(cache, ())
        held.append(cache.figures().held_blocks)
    assert held == [150 - MOST_EXPIRED_AT_ONCE, 150 - 2 * MOST_EXPIRED_AT_ONCE, 0, 0]
    assert cache.figures().evicted_by_age == 150
    assert cache.figures().evicted_for_room == 0


def test_unique_prompts_for_ever_evict_one_block_for_each_that_comes() -> None:
    cache = cache_of(5)
    for number in range(1000):
        cache.keep([Link(number.to_bytes(2, "big"), b"")], 1, lambda _: block_of((1,)))
    cache.check()
    figures = cache.figures()
    assert (figures.held_blocks, figures.kept_blocks, figures.evicted_for_room) == (5, 1000, 995)


@pytest.mark.parametrize("spare_bytes", [0, 1, BLOCK_BYTES - 1])
def test_no_room_for_a_block_is_off(spare_bytes: int) -> None:
    cache = cache_of(0, spare_bytes=spare_bytes)
    assert not cache.is_on
    assert cache.figures().capacity_bytes == 0
    keep(cache, (1, 2))
    assert num_found(cache, (1, 2)) == 0


def test_bytes_held_are_never_over_the_limit() -> None:
    cache = cache_of(2, spare_bytes=BLOCK_BYTES - 1)
    keep(cache, (1, 2, 3, 4))
    assert cache.figures().held_bytes == cache.figures().capacity_bytes == 2 * BLOCK_BYTES


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_block_that_is_not_finite_is_not_kept_and_nothing_behind_it(value: float) -> None:
    """It would fail every prompt that begins like this one, and be refreshed by each."""
    cache = cache_of(4)

    def block_at(number: int) -> Block:
        block = block_of((1, 1, 1)[: number + 1])
        if number == 1:
            block[1, 0, 0, 3, 1] = value
        return block

    cache.keep(links((1, 1, 1)), 3, block_at)
    cache.check()
    assert num_found(cache, (1, 1, 1)) == 1
    keep(cache, (1, 1, 1))
    assert num_found(cache, (1, 1, 1)) == 3


def test_a_block_that_cannot_be_read_leaves_the_books_right() -> None:
    cache = cache_of(2)

    def block_at(number: int) -> Block:
        if number == 1:
            raise IndexError("no such place")
        return block_of((1,))

    with pytest.raises(IndexError):
        cache.keep(links((1, 1)), 2, block_at)
    cache.check()
    assert num_found(cache, (1, 1)) == 1


def test_cleared_is_empty_and_usable() -> None:
    cache = cache_of(2)
    keep(cache, (1, 2))
    cache.clear()
    cache.check()
    assert num_found(cache, (1, 2)) == 0
    keep(cache, (1, 2))
    assert num_found(cache, (1, 2)) == 2


def test_figures_tell_of_prompts_and_tokens() -> None:
    cache = cache_of(2)
    cache.count(prompt_tokens=10, cached_tokens=0)
    cache.count(prompt_tokens=20, cached_tokens=16)
    keep(cache, (1, 2))
    figures = cache.figures()
    assert (figures.lookups, figures.hits, figures.looked_up_tokens, figures.hit_tokens) == (2, 1, 30, 16)
    assert (figures.held_blocks, figures.held_bytes, figures.evicted_for_room) == (2, 2 * BLOCK_BYTES, 0)


def test_digests_that_collide_are_told_apart_by_what_they_stand_for() -> None:
    """At the first link, at a later one, and behind one: nothing of the other prompt is found, or lost."""
    cache = cache_of(8)
    ours = links((1, 2, 3))
    cache.keep(ours, 3, blocks_of((1, 2, 3)))
    for number, num_alike in ((0, 0), (1, 1), (2, 2)):
        forged = tuple(Link(link.digest, b"other") if n == number else link for n, link in enumerate(ours))
        assert len(cache.find(forged, 0)) == num_alike
        assert cache.find(forged, number) == []
        assert cache.find(forged, 2) == []
        cache.keep(forged, 3, blocks_of((9, 9, 9)))
        cache.check()
        assert len(cache.find(forged[: number + 1], 0)) == number + 1
        assert num_found(cache, (1, 2, 3)) == 3
