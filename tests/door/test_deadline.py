"""What a deadline ends, and what it has no part in."""

from __future__ import annotations

import asyncio

import pytest

from proteus.door.deadline import before
from proteus.errors import DeadlineExceeded


async def in_time(deadline_s: float | None) -> None:
    async with before(deadline_s, doing="it went on", fix="wait"):
        raise TimeoutError("of a socket")


async def too_late(deadline_s: float) -> None:
    async with before(deadline_s, doing="it went on", fix="wait"):
        await asyncio.Event().wait()


@pytest.mark.parametrize("deadline_s", [None, float(2**40)])
def test_a_timeout_of_somebody_else_is_not_the_requests_deadline(deadline_s: float | None) -> None:
    with pytest.raises(TimeoutError, match="of a socket"):
        asyncio.run(in_time(deadline_s))


def test_a_deadline_that_is_over_ends_the_block_at_once() -> None:
    with pytest.raises(DeadlineExceeded, match="it went on"):
        asyncio.run(too_late(0.0))
