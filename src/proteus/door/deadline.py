"""Work that a request waits for, ended where the request's deadline passes meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from proteus.errors import DeadlineExceeded


@asynccontextmanager
async def before(deadline_s: float | None, *, doing: str, fix: str) -> AsyncIterator[None]:
    """The block, cancelled at `deadline_s` of the monotonic clock; raises DeadlineExceeded then."""
    limit = asyncio.timeout_at(deadline_s)
    try:
        async with limit:
            yield
    except TimeoutError as error:
        if not limit.expired():  # somebody else's
            raise
        raise DeadlineExceeded(f"not started in time: {doing}", limit="the request's deadline", fix=fix) from error
