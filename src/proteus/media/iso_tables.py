"""The tables of an ISO media track as numbers: sample durations, composition offsets, edits, and fragments.

Each takes the span (start, end) of a box's content; raises Damaged where a table is longer than its box and
InvalidMedia where it is longer than we read.
"""

from __future__ import annotations

import numpy as np

from proteus.media.damage import Damaged
from proteus.media.fields import number, too_many
from proteus.media.iso_timeline import FAR, Edit, Runs

MAX_ROWS = 400_000  # of one table
MAX_SAMPLES = 10_000_000  # 46 hours at 60 frames/s
MAX_EDITS = 64

Span = tuple[int, int]


def read_runs(data: memoryview, span: Span, *, signed: bool) -> Runs:
    """Rows (count, value) of `stts`, or of `ctts` whose values are `signed`; §8.6.1."""
    num_rows = _num_rows(data, span, row_bytes=8, most=MAX_ROWS, parts="sample table rows")
    start = span[0] + 8
    rows = np.frombuffer(data[start : start + num_rows * 8], dtype=">u4").reshape(-1, 2)
    rows = rows[rows[:, 0] > 0]
    values = rows[:, 1].astype(np.int32) if signed else rows[:, 1]
    return Runs(rows[:, 0].astype(np.int64), values.astype(np.int64))


def read_num_samples(data: memoryview, span: Span) -> int:
    """Number of samples of `stsz` or `stz2`; §8.7.3."""
    num_samples = number(data, span[0] + 8, 4)
    if num_samples > MAX_SAMPLES:
        raise too_many("video", "frames", MAX_SAMPLES)
    return num_samples


def read_edits(
    data: memoryview, span: Span, *, ticks_per_s: int, movie_ticks_per_s: int, is_fragmented: bool
) -> list[Edit]:
    """Edits of `elst` in ticks of the track, to the nearest; §8.6.6. A rate other than 1 is not looked at.

    A duration of 0 shows nothing, but in a file of fragments, where it means all that comes.
    """
    is_long = number(data, span[0], 1) == 1
    width, row_bytes = (8, 20) if is_long else (4, 12)
    num_rows = _num_rows(data, span, row_bytes=row_bytes, most=MAX_EDITS, parts="edits")
    starts = range(span[0] + 8, span[0] + 8 + num_rows * row_bytes, row_bytes)
    return [
        Edit(
            start=max(-1, min(number(data, at + width, width, signed=True), FAR)),
            duration=FAR if told == 0 and is_fragmented else min(_rescaled(told, ticks_per_s, movie_ticks_per_s), FAR),
        )
        for at in starts
        for told in (number(data, at, width),)
    ]


def read_run(data: memoryview, span: Span, default_ticks: int) -> tuple[int, int]:
    """(samples, ticks) of one `trun`; §8.8.8."""
    start, end = span
    flags, num_samples = number(data, start + 1, 3), number(data, start + 4, 4)
    if num_samples > MAX_SAMPLES:
        raise too_many("video", "frames", MAX_SAMPLES)
    first = start + 8 + 4 * bool(flags & 0x1) + 4 * bool(flags & 0x4)
    num_fields = (flags >> 8 & 0xF).bit_count()
    if first + 4 * num_fields * num_samples > end:
        raise Damaged
    if not flags & 0x100:
        return num_samples, num_samples * default_ticks
    fields = np.frombuffer(data[first : first + 4 * num_fields * num_samples], dtype=">u4")
    return num_samples, int(fields[::num_fields].sum(dtype=np.int64))


def _rescaled(ticks: int, to_per_s: int, from_per_s: int) -> int:
    return (ticks * to_per_s + from_per_s // 2) // from_per_s


def _num_rows(data: memoryview, span: Span, *, row_bytes: int, most: int, parts: str) -> int:
    num_rows = number(data, span[0] + 4, 4)
    if span[0] + 8 + num_rows * row_bytes > span[1]:
        raise Damaged
    if num_rows > most:
        raise too_many("video", parts, most)
    return num_rows
