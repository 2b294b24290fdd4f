from __future__ import annotations

import asyncio

import pytest

from proteus.backend.fleet import Context, EncodedPicture
from proteus.door.together import together
from proteus.errors import InvalidPicture
from tests.door.test_chat import BLUE, RED, Client, Models, call, door, run


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


def test_a_picture_that_is_refused_ends_the_encoding_of_the_others() -> None:
    class Picky(Models):
        ended = 0

        async def image_tokens(
            self, picture: bytes, key: bytes, context: Context, target_px: tuple[int, int] | None = None
        ) -> EncodedPicture:
            if picture == BLUE:
                raise InvalidPicture("truncated")
            try:
                return await super().image_tokens(picture, key, context, target_px)
            finally:
                self.ended += 1

    async def scenario() -> None:
        models = Picky()
        models.go_on.clear()
        chat = door(models)
        with pytest.raises(InvalidPicture, match="picture 2: truncated"):
            await chat.answer(call("?", RED, BLUE), Client())
        assert models.ended == 1, "nobody waits for it, and what it needs is free for others"

    run(scenario())
