from __future__ import annotations

import pytest

from proteus.door.seats import Seats
from proteus.errors import MediaTooLarge, QueueFull


def test_seats_and_bytes_are_given_back_however_the_block_ends() -> None:
    seats = Seats(max_requests=2, max_bytes=100)
    with seats.take(60) as seat:
        seat.hold(30)
        assert (seats.taken, seats.held_bytes) == (1, 90)
        with (
            pytest.raises(QueueFull, match=r"hold 90 bytes; limit: \[admission\] max_open_bytes = 100"),
            seats.take(11),
        ):
            pytest.fail("there are bytes for 10 more")
        assert (seats.taken, seats.held_bytes) == (1, 90)
        with pytest.raises(ZeroDivisionError), seats.take(10):
            raise ZeroDivisionError
        assert (seats.taken, seats.held_bytes) == (1, 90)
    assert (seats.taken, seats.held_bytes) == (0, 0)


def test_one_request_more_than_seats_is_told_the_limit() -> None:
    seats = Seats(max_requests=1, max_bytes=100)
    with (
        seats.take(1),
        pytest.raises(QueueFull, match=r"1 requests are open; limit: \[admission\].* = 1; fix: try again later"),
        seats.take(1),
    ):
        pytest.fail("there is one seat")


@pytest.mark.parametrize(("brought", "more"), [(101, 0), (60, 41)])
def test_what_never_has_room_is_too_large_and_not_to_be_tried_again(brought: int, more: int) -> None:
    seats = Seats(max_requests=1, max_bytes=100)
    with (
        pytest.raises(MediaTooLarge, match=r"needs 101 bytes; limit: \[admission\] max_open_bytes = 100; fix: send"),
        seats.take(brought) as seat,
    ):
        seat.hold(more)
    assert (seats.taken, seats.held_bytes) == (0, 0)
    with seats.take(100):
        assert seats.held_bytes == 100
