"""Which of many scores are the highest, without sorting them all. V vocabulary."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.intp]

NUM_ROWS = 64  # of the grid in which scores lie while those that cannot be among the highest are left out


def kth_highest(scores: Floats, k: int) -> np.float32:
    """The k-th highest of the scores (V,), equal ones counted apart; k is 1 to V."""
    num_columns = len(scores) // NUM_ROWS
    if 2 * k <= num_columns:
        # k columns have a score that is at least the k-th highest of the columns' own highest: nothing below counts.
        highest = scores[: NUM_ROWS * num_columns].reshape(NUM_ROWS, num_columns).max(axis=0)
        scores = scores[scores >= np.partition(highest, num_columns - k)[num_columns - k]]
    place = len(scores) - k
    result: np.float32 = np.partition(scores, place)[place]
    return result


def highest_ids(scores: Floats, count: int) -> Ids:
    """Ids of the `count` highest of the scores (V,), best first, the lower id first among equals; fewer where V is."""
    count = min(count, len(scores))
    if count == 0:
        return np.empty(0, dtype=np.intp)
    ids = np.flatnonzero(scores >= kth_highest(scores, count))
    best: Ids = ids[np.argsort(-scores[ids], kind="stable")[:count]]
    return best
