"""Which samples of an ISO media track are shown, and for how long: the sample tables seen through the edit list.

Tables are run-length coded and stay so: a run of samples with one duration and one offset is counted by arithmetic, so
a table that claims billions of samples costs no more than its bytes. Times are ticks of the track unless named else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ticks = npt.NDArray[np.int64]
FAR = 1 << 60  # ticks; times are held within ±FAR so that sums stay in 64 bits


class Edit(NamedTuple):
    """A piece of the track that is shown."""

    start: int  # first tick of the track; negative: nothing is shown, the time passes empty
    duration: int  # ticks of the track


class Runs(NamedTuple):
    """One value for each sample, run-length coded."""

    counts: Ticks  # (R,)
    values: Ticks  # (R,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Runs of samples with equal step, in file order; all arrays (R,)."""

    first: Ticks  # presentation time of the run's first sample
    step: Ticks  # from a sample to the next
    count: Ticks

    @property
    def total(self) -> int:
        return int(self.count.sum())

    @property
    def decode_duration(self) -> int:
        """Ticks of all samples one after the other."""
        return int((self.step * self.count).sum())

    @property
    def end(self) -> int:
        """The tick at which the sample shown last ends."""
        return int((self.first + self.step * self.count).max(initial=0))

    def count_from(self, start: int, end: int) -> int:
        """Samples whose presentation begins in [start, end)."""
        return int((self._before(end) - self._before(start)).clip(min=0).sum())

    def _before(self, tick: int) -> Ticks:
        """For each run, its samples that begin before `tick`."""
        moving = np.maximum(self.step, 1)
        num_before = np.clip(-((self.first - tick) // moving), 0, self.count)
        return np.where(self.step > 0, num_before, np.where(self.first < tick, self.count, 0))


def samples_of(durations: Runs, offsets: Runs | None, num_samples: int) -> Samples:
    """Join the table of durations and that of composition offsets for the first `num_samples`.

    Samples the duration table does not reach do not exist; where the offsets end, the last one goes on.
    """
    ends = np.cumsum(durations.counts)
    total = min(num_samples, int(ends[-1])) if len(ends) else 0
    if total == 0:
        nothing = np.zeros(0, dtype=np.int64)
        return Samples(first=nothing, step=nothing, count=nothing)
    offset_ends = np.cumsum(offsets.counts) if offsets is not None else np.zeros(0, dtype=np.int64)
    bounds = np.unique(np.concatenate(([0, total], ends, offset_ends)))
    bounds = bounds[bounds <= total]
    starts, count = bounds[:-1], np.diff(bounds)
    step = durations.values[np.searchsorted(ends, starts, side="right")]
    first = np.cumsum(step * count) - step * count
    if offsets is not None and len(offset_ends):
        row = np.searchsorted(offset_ends, starts, side="right").clip(max=len(offset_ends) - 1)
        first = first + offsets.values[row]
    return Samples(first=first, step=step, count=count)


def presented(samples: Samples, edits: Sequence[Edit] | None) -> tuple[int, int]:
    """(samples shown, ticks they are shown for); without an edit list all are.

    A sample is shown when its presentation begins inside an edit, which is what players do with pictures.
    """
    if edits is None:
        return samples.total, samples.decode_duration
    num_shown = num_ticks = 0
    for start, duration in edits:
        if start < 0:
            continue
        num_shown += samples.count_from(start, start + duration)
        num_ticks += max(0, min(start + duration, samples.end) - start)
    return num_shown, num_ticks
