from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proteus.media.damage import Damaged
from proteus.media.ifd import MAX_ENTRIES, first_directory, next_directory, read_directory

Entry = tuple[int, int, int, bytes]  # tag, type, number of values, room for them or their place


def classic(order: str, entries: list[Entry], following: int = 0, rest: bytes = b"") -> bytes:
    head = {"<": b"II*\0", ">": b"MM\0*"}[order] + struct.pack(f"{order}I", 8)
    table = b"".join(struct.pack(f"{order}HHI4s", *entry) for entry in entries)
    return head + struct.pack(f"{order}H", len(entries)) + table + struct.pack(f"{order}I", following) + rest


def big(entries: list[Entry]) -> bytes:
    table = b"".join(struct.pack("<HHQ8s", *entry) for entry in entries)
    return b"II+\0" + struct.pack("<HHQQ", 8, 0, 16, len(entries)) + table + bytes(8)


@given(st.sampled_from("<>"), st.integers(0, 65_535), st.integers(0, 2**32 - 1))
def test_integers_of_either_order_come_out(order: str, short: int, long: int) -> None:
    entries = [(1, 3, 1, struct.pack(f"{order}H", short)), (2, 4, 1, struct.pack(f"{order}I", long))]
    data = classic(order, entries)
    directory = read_directory(data, *first_directory(data))
    assert (directory.integer(1), directory.integer(2)) == (short, long)


@given(st.lists(st.integers(0, 65_535), min_size=3, max_size=8))
def test_values_that_do_not_fit_lie_where_their_entry_points(values: list[int]) -> None:
    rest = struct.pack(f"<{len(values)}H", *values)
    data = classic("<", [(9, 3, len(values), struct.pack("<I", 26))], rest=rest)
    directory = read_directory(data, *first_directory(data))
    assert directory.integers(9) == tuple(values)
    assert directory.content(9) == rest


def test_bigtiff_is_read_with_its_own_widths() -> None:
    data = big([(256, 16, 1, struct.pack("<Q", 77)), (258, 3, 3, struct.pack("<HHH", 8, 8, 8))])
    directory = read_directory(data, *first_directory(data))
    assert (directory.integer(256), directory.integers(258)) == (77, (8, 8, 8))


def test_of_two_entries_of_a_tag_the_first_counts() -> None:
    data = classic("<", [(1, 3, 1, b"\x05\0"), (1, 3, 1, b"\x06\0")])
    assert read_directory(data, *first_directory(data)).integer(1) == 5


def test_absent_tag_is_a_default_or_damage() -> None:
    data = classic("<", [(1, 2, 1, b"x")])
    directory = read_directory(data, *first_directory(data))
    assert directory.integer(7, 3) == 3
    assert directory.integers(1) == ()  # text is no integer
    assert directory.content(7) == b""
    with pytest.raises(Damaged):
        directory.integer(7)


def test_directory_that_is_cut_off_tells_the_entries_it_has() -> None:
    data = classic("<", [(1, 3, 1, b"\x05\0"), (2, 3, 1, b"\x06\0")])
    cut = data[: 8 + 2 + 12 + 5]
    directory = read_directory(cut, *first_directory(cut))
    assert directory.integer(1) == 5
    assert directory.integers(2) == ()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"II",
        b"XX*\0\x08\0\0\0",
        b"II,\0\x08\0\0\0",
        b"II+\0\x08\0\0\0",
        b"II*\0\xff\0\0\0",
        b"II*\0\x08\0\0\0" + struct.pack("<H", MAX_ENTRIES + 1) + bytes(99_999),
    ],
)
def test_what_is_no_directory_is_damage(data: bytes) -> None:
    with pytest.raises((Damaged, struct.error)):
        read_directory(data, *first_directory(data))


def test_value_far_outside_the_file_is_damage() -> None:
    data = big([(256, 16, 2, struct.pack("<Q", 2**64 - 1))])
    directory = read_directory(data, *first_directory(data))
    with pytest.raises(struct.error):
        directory.integers(256)
    assert directory.content(256) == b""


def test_chain_ends_at_the_end_of_the_file() -> None:
    data = classic("<", [], following=8)
    layout, offset = first_directory(data)
    assert next_directory(data, layout, offset) == 8
    assert next_directory(data, layout, len(data)) == 0
    assert next_directory(classic("<", [], following=99), layout, offset) == 0
