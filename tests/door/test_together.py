from __future__ import annotations

import asyncio

import pytest

from proteus.door.together import together
from proteus.errors import InvalidPicture


async def give(value: int) -> int:
    await asyncio.sleep(0)
    return value


def test_results_come_in_order() -> None:
    assert asyncio.run(together(give(value) for value in (3, 1, 2))) == [3, 1, 2]
    assert asyncio.run(together(())) == []


@pytest.mark.parametrize("error", [InvalidPicture("truncated"), OSError("gone")])
def test_the_first_that_fails_ends_the_others_before_it_is_raised(error: Exception) -> None:
    ended = []

    async def fail() -> int:
        await asyncio.sleep(0)
        raise error

    async def last() -> int:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("last")
        return 0

    with pytest.raises(type(error)) as caught:
        asyncio.run(together([last(), fail()]))
    assert caught.value is error
    assert ended == ["last"]
