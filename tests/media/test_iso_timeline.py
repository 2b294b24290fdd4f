"""Counting of shown samples against the same thing done sample by sample."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from proteus.media.iso_timeline import FAR, Edit, Runs, presented, samples_of

DURATIONS = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 9)), max_size=6)
OFFSETS = st.none() | st.lists(st.tuples(st.integers(1, 5), st.integers(-9, 30)), min_size=1, max_size=6)
EDITS = st.none() | st.lists(st.builds(Edit, st.integers(-1, 120), st.integers(0, 150)), min_size=1, max_size=3)


def runs(rows: list[tuple[int, int]]) -> Runs:
    table = np.array(rows, dtype=np.int64).reshape(-1, 2)
    return Runs(table[:, 0], table[:, 1])


def spread(rows: list[tuple[int, int]]) -> list[int]:
    return [value for count, value in rows for _ in range(count)]


@settings(max_examples=100, deadline=None)
@given(durations=DURATIONS, offsets=OFFSETS, edits=EDITS, num_samples=st.integers(0, 30))
def test_runs_count_as_samples_one_by_one(
    durations: list[tuple[int, int]], offsets: list[tuple[int, int]] | None, edits: list[Edit] | None, num_samples: int
) -> None:
    steps = spread(durations)[:num_samples]
    shifts = spread(offsets) if offsets else [0]
    shifts += [shifts[-1]] * len(steps)
    times = [sum(steps[:index]) + shifts[index] for index in range(len(steps))]
    samples = samples_of(runs(durations), runs(offsets) if offsets is not None else None, num_samples)
    shown = [
        time
        for edit in (edits if edits is not None else [Edit(-FAR, 2 * FAR)])
        if edit.start >= 0 or edits is None
        for time in times
        if edit.start <= time < edit.start + edit.duration
    ]
    assert presented(samples, edits)[0] == len(shown)
    assert samples.decode_duration == sum(steps)
    assert samples.end == max([0, *(time + step for time, step in zip(times, steps, strict=True))])


def test_an_edit_lasts_no_longer_than_the_track() -> None:
    samples = samples_of(runs([(10, 512)]), None, 10)
    assert presented(samples, [Edit(1024, FAR)]) == (8, 8 * 512)
    assert presented(samples, [Edit(-1, 4000), Edit(0, 1024), Edit(0, 1024)]) == (4, 2048)


def test_ten_million_samples_of_four_billion_ticks_fit() -> None:
    samples = samples_of(runs([(2**32 - 1, 2**32 - 1)]), runs([(2**32 - 1, -(2**31))]), 10_000_000)
    assert presented(samples, None) == (10_000_000, 10_000_000 * (2**32 - 1))
    assert presented(samples, [Edit(FAR, FAR)])[0] == 0
