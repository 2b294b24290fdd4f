from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proteus.media.orientation import orientation_of
from tests.media.corpus_pictures import turned, xmp
from tests.media.test_ifd import classic


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("heads", [0, 1, 2])
def test_exif_tells_the_turn_with_or_without_its_identifier(orientation: int, heads: int) -> None:
    exif = turned(orientation).removeprefix(b"Exif\0\0")
    assert orientation_of(b"Exif\0\0" * heads + exif) == orientation


@pytest.mark.parametrize("order", ["<", ">"])
def test_either_byte_order_is_read(order: str) -> None:
    value = b"\6\0" if order == "<" else b"\0\6"
    assert orientation_of(classic(order, [(0x0112, 3, 1, value)])) == 6


@pytest.mark.parametrize("value", [0, 9, 255])
def test_number_that_is_no_orientation_turns_nothing(value: int) -> None:
    assert orientation_of(turned(value)) == 1


def test_xmp_counts_only_where_exif_says_nothing() -> None:
    packet = xmp(8).encode()
    assert orientation_of(b"", packet) == 8
    assert orientation_of(turned(3), packet) == 3
    assert orientation_of(classic("<", []), packet) == 8
    assert orientation_of(b"", b"<tiff:Orientation>6</tiff:Orientation>") == 6
    assert orientation_of(b"", xmp(0).encode()) == 1


def test_value_outside_of_the_block_turns_nothing() -> None:
    assert orientation_of(classic("<", [(0x0112, 3, 9, b"\xff\xff\0\0")])) == 1


@given(st.binary(max_size=64), st.binary(max_size=64))
def test_any_metadata_give_an_orientation(exif: bytes, packet: bytes) -> None:
    assert orientation_of(exif, packet) in range(1, 9)
    assert orientation_of(b"II*\0\x08\0\0\0" + exif, packet) in range(1, 9)
