"""The tables of a track, row by row."""

from __future__ import annotations

import struct

import pytest

from proteus.errors import InvalidMedia
from proteus.media.damage import Damaged
from proteus.media.iso_tables import (
    MAX_EDITS,
    MAX_ROWS,
    MAX_SAMPLES,
    read_edits,
    read_num_samples,
    read_run,
    read_runs,
)
from proteus.media.iso_timeline import FAR, Edit


def span(data: bytes) -> tuple[memoryview, tuple[int, int]]:
    return memoryview(data), (0, len(data))


def table(*rows: bytes, version: int = 0, told: int | None = None) -> bytes:
    return struct.pack(">B3xI", version, len(rows) if told is None else told) + b"".join(rows)


def edits(data: bytes, *, ticks_per_s: int = 15_360, is_fragmented: bool = False) -> list[Edit]:
    return read_edits(*span(data), ticks_per_s=ticks_per_s, movie_ticks_per_s=1000, is_fragmented=is_fragmented)


def test_offsets_may_be_negative_and_durations_may_not() -> None:
    rows = table(struct.pack(">Ii", 3, -512), struct.pack(">Ii", 0, 9), struct.pack(">Ii", 1, 4))
    signed, unsigned = read_runs(*span(rows), signed=True), read_runs(*span(rows), signed=False)
    assert (signed.counts.tolist(), signed.values.tolist()) == ([3, 1], [-512, 4])
    assert unsigned.values.tolist() == [2**32 - 512, 4]


@pytest.mark.parametrize(("duration_ms", "ticks"), [(334, 5130), (333, 5115), (1, 15), (7, 108)])
def test_an_edit_is_told_in_ticks_of_the_track_to_the_nearest(duration_ms: int, ticks: int) -> None:
    assert edits(table(struct.pack(">IiI", duration_ms, 1024, 1 << 16))) == [Edit(1024, ticks)]


def test_edits_of_64_bits_are_read_and_held_within_bounds() -> None:
    rows = struct.pack(">QqI", 1000, 2**40, 1 << 16), struct.pack(">QqI", 2**64 - 1, -(2**63), 1 << 16)
    assert edits(table(*rows, version=1)) == [Edit(2**40, 15_360), Edit(-1, FAR)]


def test_an_edit_of_no_duration_is_open_only_among_fragments() -> None:
    rows = table(struct.pack(">IiI", 0, 512, 1 << 16))
    assert edits(rows) == [Edit(512, 0)]
    assert edits(rows, is_fragmented=True) == [Edit(512, FAR)]


@pytest.mark.parametrize("first_flags", [False, True])
@pytest.mark.parametrize("data_offset", [False, True])
@pytest.mark.parametrize("extra_fields", [0x000, 0x200, 0xE00])
def test_a_run_tells_each_duration_behind_its_optional_fields(
    first_flags: bool, data_offset: bool, extra_fields: int
) -> None:
    flags = 0x100 | extra_fields | data_offset | first_flags << 2
    optional = b"\xff" * 4 * (data_offset + first_flags)
    others = b"\xee" * 4 * extra_fields.bit_count()
    rows = b"".join(struct.pack(">I", ticks) + others for ticks in (100, 2**32 - 1, 7))
    assert read_run(*span(struct.pack(">II", flags, 3) + optional + rows), 5) == (3, 106 + 2**32)
    with pytest.raises(Damaged):
        read_run(*span(struct.pack(">II", flags, 3) + optional + rows[:-1]), 5)


def test_a_run_without_durations_takes_the_default() -> None:
    assert read_run(*span(struct.pack(">II", 0x0, 3)), 5) == (3, 15)
    assert read_run(*span(struct.pack(">II", 0x200, 1) + bytes(4)), 5) == (1, 5)


def test_a_table_over_its_box_is_damage_whatever_it_claims() -> None:
    for told in (2, 2**32 - 1):
        with pytest.raises(Damaged):
            read_runs(*span(table(bytes(8), told=told)), signed=False)
        with pytest.raises(Damaged):
            edits(table(bytes(12), told=told))


def test_more_than_is_read_is_refused() -> None:
    with pytest.raises(InvalidMedia, match=f"limit: {MAX_EDITS} edits"):
        edits(table(*[bytes(12)] * (MAX_EDITS + 1)))
    with pytest.raises(InvalidMedia, match=f"limit: {MAX_ROWS:,} sample table rows"):
        read_runs(*span(table(*[bytes(8)] * (MAX_ROWS + 1))), signed=False)
    with pytest.raises(InvalidMedia, match=f"limit: {MAX_SAMPLES:,} frames"):
        read_num_samples(*span(struct.pack(">III", 0, 1, MAX_SAMPLES + 1)))
    with pytest.raises(InvalidMedia, match=f"limit: {MAX_SAMPLES:,} frames"):
        read_run(*span(struct.pack(">II", 0, MAX_SAMPLES + 1)), 5)
