from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proteus.admission.ledger import NOTHING, Ledger
from proteus.cost.vector import ResourceVector
from proteus.limits import Resources

CAPACITY = Resources(requests=3, media_bytes=100)


def test_what_fits_is_held_until_it_is_released() -> None:
    ledger = Ledger(CAPACITY)
    one = ledger.reserve(ResourceVector(requests=1, media_bytes=60, frames=7))
    assert ledger.held == ResourceVector(requests=1, media_bytes=60, frames=7)
    assert not ledger.can_reserve(ResourceVector(media_bytes=41))
    assert ledger.can_reserve(ResourceVector(media_bytes=40, frames=10**9))
    one.release()
    assert (ledger.held, len(ledger)) == (NOTHING, 0)
    ledger.check()


def test_short_names_every_resource_that_is_missing() -> None:
    ledger = Ledger(CAPACITY)
    ledger.reserve(ResourceVector(requests=3, media_bytes=90))
    assert ledger.short(ResourceVector(requests=1, media_bytes=11)) == {"requests", "media_bytes"}
    assert ledger.short(ResourceVector(media_bytes=11)) == {"media_bytes"}
    assert ledger.short(NOTHING) == frozenset()


def test_only_limited_resources_that_are_needed_count() -> None:
    assert Ledger(CAPACITY).limited(ResourceVector(media_bytes=1, frames=1)) == {"media_bytes"}


def test_what_does_not_fit_takes_nothing() -> None:
    ledger = Ledger(CAPACITY)
    with pytest.raises(ValueError, match="not enough media_bytes, requests left"):
        ledger.reserve(ResourceVector(requests=4, media_bytes=101))
    with pytest.raises(ValueError, match="below zero"):
        ledger.reserve(ResourceVector(media_bytes=-1))
    assert (ledger.held, len(ledger)) == (NOTHING, 0)


def test_a_second_release_raises_and_frees_nothing_of_others() -> None:
    ledger = Ledger(CAPACITY)
    one, other = ledger.reserve(ResourceVector(requests=1)), ledger.reserve(ResourceVector(requests=1))
    one.release()
    with pytest.raises(RuntimeError, match="released already"):
        one.release()
    assert ledger.held == other.vector
    assert not one.held and other.held


def test_a_block_releases_when_it_ends_and_when_it_fails() -> None:
    ledger = Ledger(CAPACITY)
    with ledger.reserve(ResourceVector(requests=1)) as reservation:
        assert reservation.held
    assert not reservation.held
    with pytest.raises(KeyError), ledger.reserve(ResourceVector(requests=1)):
        raise KeyError
    assert ledger.held == NOTHING


def test_a_release_inside_its_own_block_is_found() -> None:
    ledger = Ledger(CAPACITY)
    with pytest.raises(RuntimeError, match="released already"), ledger.reserve(ResourceVector(requests=1)) as one:
        one.release()
    assert ledger.held == NOTHING


def test_shrinking_frees_the_difference_and_release_the_rest() -> None:
    freed: list[ResourceVector] = []
    ledger = Ledger(CAPACITY, freed=lambda: freed.append(ledger.held))
    one = ledger.reserve(ResourceVector(requests=1, media_bytes=80))
    one.shrink(ResourceVector(requests=1))
    one.release()
    assert freed == [ResourceVector(requests=1), NOTHING]
    assert ledger.peak == ResourceVector(requests=1, media_bytes=80)


@pytest.mark.parametrize("to", [ResourceVector(requests=2), ResourceVector(frames=1), ResourceVector(media_bytes=-1)])
def test_nothing_grows_or_goes_below_zero_by_shrinking(to: ResourceVector) -> None:
    ledger = Ledger(CAPACITY)
    one = ledger.reserve(ResourceVector(requests=1, media_bytes=80))
    with pytest.raises(ValueError, match="cannot shrink"):
        one.shrink(to)
    ledger.check()


def test_what_is_released_cannot_shrink() -> None:
    one = Ledger(CAPACITY).reserve(ResourceVector(requests=1))
    one.release()
    with pytest.raises(RuntimeError, match="released already"):
        one.shrink(NOTHING)


def test_check_finds_a_sum_that_is_off_and_an_overflow() -> None:
    ledger = Ledger(CAPACITY)
    ledger.held = ResourceVector(requests=1)
    with pytest.raises(RuntimeError, match="add up to"):
        ledger.check()
    ledger = Ledger(CAPACITY)
    ledger.reserve(ResourceVector(requests=1)).vector = ResourceVector(requests=4)
    ledger.held = ResourceVector(requests=4)
    with pytest.raises(RuntimeError, match="over capacity: requests"):
        ledger.check()


VECTORS = st.builds(ResourceVector, requests=st.integers(0, 2), media_bytes=st.integers(0, 60), frames=st.integers(0))


@settings(max_examples=60)
@given(st.lists(st.tuples(VECTORS, st.booleans(), st.integers(0)), max_size=20))
def test_the_ledger_is_the_sum_of_what_is_open(steps: list[tuple[ResourceVector, bool, int]]) -> None:
    ledger, open_ = Ledger(CAPACITY), []
    for vector, give_back, which in steps:
        if ledger.can_reserve(vector):
            open_.append(ledger.reserve(vector))
        if give_back and open_:
            open_.pop(which % len(open_)).release()
        ledger.check()
        assert len(ledger) == len(open_)
    for reservation in open_:
        reservation.release()
    assert ledger.held == NOTHING
