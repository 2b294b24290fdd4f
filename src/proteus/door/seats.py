"""How many requests are open at once, and how many bytes they hold: what is bounded before a request is even read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from proteus.errors import MediaTooLarge, QueueFull


class Seats:
    """For one event loop. `table` of the deployment file states the limits."""

    def __init__(self, *, max_requests: int, max_bytes: int, table: str = "admission") -> None:
        self._max_requests, self._max_bytes, self._table = max_requests, max_bytes, table
        self.taken = 0
        self.held_bytes = 0

    @contextmanager
    def take(self, num_bytes: int) -> Iterator[Seat]:
        """A seat for a request that brought `num_bytes`, until the block ends; raises QueueFull or MediaTooLarge."""
        if self.taken >= self._max_requests:
            raise QueueFull(
                f"{self.taken:,} requests are open",
                limit=f"[{self._table}] capacity.requests and all queues together = {self._max_requests:,}",
            )
        seat = Seat(self)
        self.taken += 1
        try:
            seat.hold(num_bytes)
            yield seat
        finally:
            self.taken -= 1
            self.held_bytes -= seat.held_bytes

    def hold(self, num_bytes: int, *, of: int) -> None:
        """Take note of bytes, the last of the `of` bytes of one request.

        Raises QueueFull when there would be too many, MediaTooLarge when that request alone has too many.
        """
        limit = f"[{self._table}] max_open_bytes = {self._max_bytes:,}"
        if of > self._max_bytes:
            raise MediaTooLarge(f"the request needs {of:,} bytes", limit=limit, fix="send less in one request")
        if self.held_bytes + num_bytes > self._max_bytes:
            raise QueueFull(f"the open requests hold {self.held_bytes:,} bytes", limit=limit)
        self.held_bytes += num_bytes


class Seat:
    """Of one request; `held_bytes` are given back with it."""

    def __init__(self, seats: Seats) -> None:
        self._seats = seats
        self.held_bytes = 0

    def hold(self, num_bytes: int) -> None:
        """Bytes more, before they are there; raises QueueFull, or MediaTooLarge when no waiting would help."""
        self._seats.hold(num_bytes, of=self.held_bytes + num_bytes)
        self.held_bytes += num_bytes
