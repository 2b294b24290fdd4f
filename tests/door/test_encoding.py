"""What the encoder cache keeps of a request, and what it does not."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc

import pytest

from proteus.door.chat import Chat
from proteus.errors import InternalError
from tests.door.test_chat import BLUE, FAMILY, RED, Client, Models, call, door, run

LONG_SCOPE_CHARS = 1 << 20


def test_the_name_of_a_scope_is_not_kept_with_each_picture() -> None:
    """It may be as long as a request, and no limit of the cache counts it."""

    async def scenario() -> None:
        models = Models()
        chat = door(models)
        await chat.answer(call("?", RED), Client())
        tracemalloc.start()
        for number in range(8):
            await chat.answer(call("?", BLUE, cache_scope=f"{number}" * LONG_SCOPE_CHARS), Client())
            models.calls.clear()
        await asyncio.sleep(0)
        gc.collect()
        held_bytes, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert chat.cache_figures().store.held == 9
        assert held_bytes < 3 * LONG_SCOPE_CHARS

    run(scenario())


def test_another_number_of_visual_tokens_than_planned_is_answered_and_kept_by_nobody() -> None:
    async def scenario() -> None:
        models = Models()
        chat = door(models)
        models.visual_tokens = FAMILY.visual_tokens - 1
        with pytest.raises(InternalError):
            await chat.answer(call("?", RED), Client())
        models.visual_tokens = FAMILY.visual_tokens
        client = Client()
        await chat.answer(call("?", RED), client)
        assert client.reports[0]["pictures"] == ["encoded"]

    run(scenario())


def test_a_picture_is_found_again_only_of_the_encoder_that_made_it() -> None:
    """Of servers that encode for this one, each may run something else, and one may be replaced at any time."""

    async def pictures(chat: Chat) -> list[str]:
        client = Client()
        await chat.answer(call("?", RED), client)
        return list(client.reports[0]["pictures"])

    async def scenario() -> None:
        models = Models()
        chat = door(models)
        models.encoder_now = models.encoded_by = "one"
        assert [await pictures(chat) for _ in range(2)] == [["encoded"], ["cached"]]
        models.encoder_now = models.encoded_by = "another"
        assert [await pictures(chat) for _ in range(2)] == [["encoded"], ["cached"]]
        models.encoder_now, models.encoded_by = "third", "fourth"  # it was replaced while the picture was under way
        assert [await pictures(chat) for _ in range(2)] == [["encoded"], ["encoded"]]
        models.encoder_now = "fourth"
        assert await pictures(chat) == ["cached"]
        keys = [call.media_keys for call in models.calls]
        assert len(set(keys)) == 3, "nor are prompts shared that were computed from other rows"
        models.encoder_now = "one"
        assert await pictures(chat) == ["cached"]

    run(scenario())
