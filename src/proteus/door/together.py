"""Several works at once that stand or fall together, so that a request that ends leaves none behind."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

Done = TypeVar("Done")


async def together(works: Iterable[Coroutine[Any, Any, Done]]) -> list[Done]:
    """What each of `works` gives, in their order; the error of the first that fails, once the others have ended."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except* Exception as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
