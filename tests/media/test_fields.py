"""Reads from headers stop at the end of the data."""

from __future__ import annotations

import pytest

from proteus.media.damage import Damaged
from proteus.media.fields import letters, number, too_many

DATA = memoryview(b"\x01\x02\xff\x04abc\x00")


def test_numbers_of_either_order_and_sign() -> None:
    assert number(DATA, 0, 2) == 0x0102
    assert number(DATA, 0, 2, "little") == 0x0201
    assert number(DATA, 2, 1, signed=True) == -1


@pytest.mark.parametrize(("at", "num_bytes"), [(-1, 1), (7, 2), (8, 1), (1 << 70, 4)])
def test_a_number_past_either_end_is_damage(at: int, num_bytes: int) -> None:
    with pytest.raises(Damaged):
        number(DATA, at, num_bytes)


def test_letters_that_cannot_be_printed_are_shown_as_question_marks() -> None:
    assert letters(DATA, 4) == "abc?"
    with pytest.raises(Damaged):
        letters(DATA, 5)


def test_too_many_parts_names_the_limit_and_the_way_out() -> None:
    error = too_many("video", "boxes", 1000)
    assert str(error) == (
        "invalid_media: the video is made of too many boxes; limit: 1,000 boxes; fix: send a shorter video"
    )
