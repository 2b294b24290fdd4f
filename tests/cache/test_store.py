"""The store against a list of what was kept, and the whole key against its digest."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from proteus.cache.store import Store

MAX_AGE_S = 10.0
COST_S = 0.25


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def store_of(max_bytes: int, clock: Clock | None = None) -> Store[int, str]:
    """Of whole numbers; those that are equal in the last of ten digits have the same digest."""
    return Store(
        max_bytes=max_bytes, max_age_s=MAX_AGE_S, digest=lambda key: bytes([key % 10]), clock_s=clock or Clock()
    )


class AgainstModel(RuleBasedStateMachine):
    """The model: (key, value, bytes, when it was made), least recently used first."""

    keys = st.integers(0, 19)

    @initialize(max_bytes=st.integers(0, 30))
    def start(self, max_bytes: int) -> None:
        self.clock, self.max_bytes = Clock(), max_bytes
        self.store = store_of(max_bytes, self.clock)
        self.held: list[tuple[int, str, int, float]] = []
        self.lookups = self.hits = self.collisions = self.for_room = self.by_age = self.num_kept = 0

    def forget_old(self) -> None:
        young = [entry for entry in self.held if entry[3] >= self.clock.now_s - MAX_AGE_S]
        self.by_age += len(self.held) - len(young)
        self.held = young

    @rule(key=keys, num_bytes=st.integers(1, 12), age_s=st.sampled_from([0.0, 0.0, 4.0, 10.0, 10.5]))
    def keep(self, key: int, num_bytes: int, age_s: float) -> None:
        self.num_kept += 1
        self.store.keep(key, f"{key}/{self.num_kept}", num_bytes, cost_s=COST_S, age_s=age_s)
        self.forget_old()
        self.held = [entry for entry in self.held if entry[0] % 10 != key % 10]
        if num_bytes <= self.max_bytes and age_s <= MAX_AGE_S:
            while sum(entry[2] for entry in self.held) + num_bytes > self.max_bytes:
                del self.held[0]
                self.for_room += 1
            self.held.append((key, f"{key}/{self.num_kept}", num_bytes, self.clock.now_s - age_s))

    @rule(key=keys)
    def find(self, key: int) -> None:
        found = self.store.find(key)
        self.forget_old()
        self.lookups += 1
        same = [entry for entry in self.held if entry[0] % 10 == key % 10]
        if same and same[0][0] == key:
            self.hits += 1
            self.held.remove(same[0])
            self.held.append(same[0])
            assert found is not None
            assert (found.key, found.value, found.num_bytes, found.made_s, found.cost_s) == (*same[0], COST_S)
        else:
            self.collisions += len(same)
            assert found is None

    @rule(seconds=st.sampled_from([0.0, 1.0, 9.0, 10.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.clock.now_s += seconds

    @rule()
    def drop_expired(self) -> None:
        self.store.drop_expired()
        self.forget_old()

    @rule()
    def clear(self) -> None:
        self.store.clear()
        self.held.clear()

    @invariant()
    def figures_are_those_of_the_model(self) -> None:
        if not hasattr(self, "store"):
            return
        figures = self.store.figures()
        assert (figures.held, figures.held_bytes) == (len(self.held), sum(entry[2] for entry in self.held))
        assert figures.held_bytes <= figures.max_bytes == self.max_bytes
        assert (figures.lookups, figures.hits, figures.collisions) == (self.lookups, self.hits, self.collisions)
        assert (figures.evicted_for_room, figures.evicted_by_age) == (self.for_room, self.by_age)
        assert figures.saved_s == self.hits * COST_S


TestAgainstModel = AgainstModel.TestCase
TestAgainstModel.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)


def test_the_same_digest_is_no_hit_and_the_later_entry_takes_its_place() -> None:
    store = store_of(10)
    store.keep(1, "one", 1, cost_s=COST_S)
    assert store.find(11) is None
    assert store.find(1) is not None
    store.keep(11, "eleven", 1, cost_s=COST_S)
    assert store.find(1) is None
    assert store.figures().collisions == 2


def test_age_counts_from_the_making_however_often_it_is_used() -> None:
    clock = Clock()
    store = store_of(10, clock)
    store.keep(1, "one", 1, cost_s=COST_S)
    for clock.now_s in (5.0, 10.0):
        assert store.find(1) is not None
    clock.now_s = 10.5
    assert store.find(1) is None


@pytest.mark.parametrize(("max_bytes", "is_on"), [(0, False), (1, True)])
def test_a_store_without_room_is_off(max_bytes: int, is_on: bool) -> None:
    store = store_of(max_bytes)
    store.keep(1, "one", 1, cost_s=COST_S)
    assert store.is_on is is_on
    assert (store.find(1) is not None) is is_on
