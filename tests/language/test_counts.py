from __future__ import annotations

import pytest

from proteus.language.counts import Counts


def test_cached_tokens_save_the_mean_time_of_the_tokens_computed_by_then() -> None:
    counts = Counts()
    assert counts.note_cached(16) == 0.0, "nothing was computed: what it would take is not known"
    counts.note_prefill(100, 0.5)
    assert counts.note_cached(10) == pytest.approx(0.05)
    counts.note_prefill(100, 1.5)
    counts.note_given_up(50, 9.0)
    assert counts.note_cached(10) == pytest.approx(0.1)
    assert (counts.cached_tokens, counts.saved_s) == (36, pytest.approx(0.15))
