from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proteus.language.ranking import highest_ids, kth_highest


@given(
    seed=st.integers(0, 10_000),
    size=st.sampled_from([1, 2, 63, 64, 65, 500, 4000]),
    distinct=st.sampled_from([1, 3, 1000, 10**9]),
    place=st.floats(0, 1, exclude_max=True),
)
@settings(deadline=None, max_examples=300)
def test_the_highest_are_those_of_a_full_sort(seed: int, size: int, distinct: int, place: float) -> None:
    scores = np.random.default_rng(seed).integers(-distinct, distinct, size).astype(np.float32)
    scores[seed % size] = -np.inf
    k = 1 + int(place * size)
    in_order = sorted(range(size), key=lambda number: (-scores[number], number))
    assert kth_highest(scores, k) == scores[in_order[k - 1]]
    assert highest_ids(scores, k).tolist() == in_order[:k]


@pytest.mark.parametrize("count", [0, 3, 9])
def test_no_more_are_given_than_there_are(count: int) -> None:
    assert highest_ids(np.array([1, 5, 5], dtype=np.float32), count).tolist() == [1, 2, 0][:count]
