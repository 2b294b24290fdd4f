"""What a request holds is given back on every path, and who waits is heard when it leaves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from proteus.backend.fleet import Context
from proteus.door.arrival import Call
from proteus.door.chat import Chat
from proteus.door.reply import POLLS_PER_S, Piece
from proteus.errors import (
    DeadlineExceeded,
    FetchFailed,
    InternalError,
    InvalidPicture,
    MediaTooLarge,
    ProteusError,
    QueueFull,
    Unavailable,
)
from proteus.language.prompt import PromptRenderer
from proteus.media.fetch import Fetcher
from tests.door.test_chat import BLUE, DEMO, DETOKENIZER, FAMILY, MANIFEST, RED, Client, Models, call, door, run
from tests.preprocess.pictures import encode, noise


def is_empty(chat: Chat) -> bool:
    seen = chat.figures().admission
    return not any(seen.held.values()) and not any(seen.queued.values())


class Broken(Client):
    def send(self, piece: Piece) -> None:
        raise OSError("gone")


async def held(chat: Chat, models: Models) -> None:
    while not (models.encoded or models.calls):
        await asyncio.sleep(0.001)
    assert not is_empty(chat)


def test_the_whole_vector_is_held_while_pictures_are_encoded_and_decoding_is_given_back_after() -> None:
    async def scenario() -> None:
        models = Models()
        chat = door(models)
        models.go_on.clear()
        task = asyncio.create_task(chat.answer(call("?", RED, BLUE, RED, max_tokens=5), Client()))
        await held(chat, models)
        now = chat.figures().admission.held
        tokens = now["text_tokens"] + now["visual_tokens"] + 5
        assert now["items"] == 3
        assert now["media_bytes"] == 2 * len(RED) + len(BLUE)
        assert now["decoded_pixels"] == 3 * 20 * 16
        assert (now["visual_tokens"], now["output_tokens"]) == (3 * FAMILY.visual_tokens, 5)
        assert now["kv_bytes"] == FAMILY.language.self_kv_bytes(tokens, 4)
        assert now["encoder_flops"] > 0
        models.go_on.set()
        await task
        assert is_empty(chat)
        peak = chat.figures().admission.peak
        assert (peak["requests"], peak["media_bytes"]) == (1, 2 * len(RED) + len(BLUE))

    run(scenario())


@pytest.mark.parametrize(
    "error", [InvalidPicture("truncated"), Unavailable("dead"), InternalError(), QueueFull("full")]
)
@pytest.mark.parametrize("stage", ["encode_error", "llm_error"])
def test_an_error_of_any_stage_gives_everything_back(error: ProteusError, stage: str) -> None:
    async def scenario() -> None:
        models = Models()
        chat = door(models)
        setattr(models, stage, error)
        with pytest.raises(type(error)):
            await chat.answer(call("?", RED), Client())
        assert is_empty(chat)
        assert chat.figures().admission.peak["requests"] == 1

    run(scenario())


def test_a_task_cancelled_at_any_moment_gives_everything_back() -> None:
    async def scenario() -> None:
        models = Models()
        chat = door(models, requests=2, queued=8)
        for moment in range(40):
            models.go_on.clear()
            tasks = [asyncio.create_task(chat.answer(call("?", RED), Client())) for _ in range(5)]
            for _ in range(moment % 13):
                await asyncio.sleep(0.0005 * (moment % 5))
            for task in tasks:
                task.cancel()
            models.go_on.set()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(result is None or isinstance(result, asyncio.CancelledError) for result in results)
            assert is_empty(chat)

    run(scenario())


def test_a_client_that_leaves_gives_everything_back_before_and_during_the_answer() -> None:
    async def scenario() -> None:
        models = Models()
        chat = door(models, requests=1, queued=4)
        models.go_on.clear()
        first, second = Client(), Client()
        answering = asyncio.create_task(chat.answer(call("?"), first))
        await held(chat, models)
        waiting = asyncio.create_task(chat.answer(call("?", RED), second))
        while not chat.figures().admission.queued["media"]:
            await asyncio.sleep(0.001)
        second.gone = True
        await waiting
        (report,) = second.reports
        assert (report["finish_reason"], report["usage"]["output_tokens"]) == ("cancelled", 0)
        assert chat.figures().admission.queued["media"] == 0
        assert models.encoded == [], "one that left while it waited is not worked for"
        first.gone = True
        await answering
        assert is_empty(chat)

    run(scenario())


def test_a_client_that_leaves_while_its_picture_is_encoded_is_not_worked_for_any_more() -> None:
    async def scenario() -> None:
        models, client = Models(), Client()
        chat = door(models)
        models.go_on.clear()
        task = asyncio.create_task(chat.answer(call("?", RED), client))
        await held(chat, models)
        client.gone = True
        await task
        assert client.reports[0]["finish_reason"] == "cancelled"
        assert models.calls == []
        assert is_empty(chat)

    run(scenario())


def test_bytes_of_open_requests_are_bounded_before_they_are_read() -> None:
    async def scenario() -> None:
        models = Models()
        asked = call("?", RED)
        chat = door(models, requests=1, queued=9, max_open_bytes=2 * asked.num_bytes)
        models.go_on.clear()
        tasks = [asyncio.create_task(chat.answer(asked, Client())) for _ in range(2)]
        await held(chat, models)
        with pytest.raises(
            QueueFull, match=rf"hold {2 * asked.num_bytes:,} bytes; limit: \[admission\] max_open_bytes"
        ):
            await chat.answer(call("?"), Client())
        models.go_on.set()
        await asyncio.gather(*tasks)
        await chat.answer(asked, Client())
        assert is_empty(chat)

    run(scenario())


def test_a_connection_that_breaks_gives_everything_back() -> None:
    async def scenario() -> None:
        chat = door(Models())
        with pytest.raises(OSError, match="gone"):
            await chat.answer(call("?", RED), Broken())
        assert is_empty(chat)

    run(scenario())


def test_over_capacity_some_wait_and_the_rest_are_told_when_to_come_back() -> None:
    async def scenario() -> None:
        models = Models()
        chat = door(models, requests=1, queued=2)
        models.go_on.clear()
        answering = asyncio.create_task(chat.answer(call("?"), Client()))
        await held(chat, models)
        waiting = [asyncio.create_task(chat.answer(call("?"), Client())) for _ in range(2)]
        while chat.figures().admission.queued["text"] < 2:
            await asyncio.sleep(0.001)
        with pytest.raises(QueueFull, match=r"\[admission.queues\] text.max_queue = 2; fix: try again (in|later)"):
            await chat.answer(call("?"), Client())
        models.go_on.set()
        await asyncio.gather(answering, *waiting)
        assert is_empty(chat)
        assert chat.figures().admission.refused == {"queue_full": 1}

    run(scenario())


def test_a_deadline_ends_waiting() -> None:
    async def scenario() -> None:
        models = Models()
        chat = door(models, requests=1, queued=4)
        models.go_on.clear()
        answering = asyncio.create_task(chat.answer(call("?"), Client()))
        await held(chat, models)
        with pytest.raises(DeadlineExceeded):
            await chat.answer(call("?", deadline_ms=50), Client())
        models.go_on.set()
        await answering
        assert is_empty(chat)

    run(scenario())


def test_what_can_never_fit_is_refused_at_the_door() -> None:
    async def scenario() -> None:
        limits = DEMO.admission.model_copy(update={"request": DEMO.admission.request.model_copy(update={"items": 1})})
        models = Models()
        renderer = PromptRenderer.from_checkpoint(DEMO.checkpoint_path)
        chat = Chat(DEMO.model_copy(update={"admission": limits}), MANIFEST, FAMILY, renderer, DETOKENIZER, models)
        with pytest.raises(MediaTooLarge, match=r"items = 2; limit: \[admission.request\] items = 1"):
            await chat.answer(call("?", RED, BLUE), Client())
        assert models.encoded == []

    run(scenario())


def test_a_large_picture_is_made_smaller_as_its_tier_says_and_has_a_key_of_its_own() -> None:
    async def scenario() -> None:
        models = Models()
        chat = door(models)
        large = encode(noise(1200, 900))
        document = {"type": "image", "detail": "low"}
        low = call("?", large)
        low = type(low)(
            document=low.document.replace(b'{"type": "image"}', str(document).replace("'", '"').encode()),
            attached=low.attached,
            context=low.context,
        )
        await chat.answer(low, Client())
        await chat.answer(call("?", large), Client())
        target_px, whole = models.targets
        assert whole is None
        assert target_px is not None
        assert target_px[0] * target_px[1] <= DEMO.tiers.low.max_pixels
        assert target_px[0] * 900 == pytest.approx(target_px[1] * 1200, abs=1200)
        first, second = (sent.media_keys for sent in models.calls)
        assert first != second

    run(scenario())


def test_a_url_is_refused_while_no_host_is_allowed() -> None:
    async def scenario() -> None:
        models = Models()
        part = b'{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}'
        asked = call("?", RED)
        asked = type(asked)(
            document=asked.document.replace(b'{"type": "image"}', part), attached=(), context=asked.context
        )
        with pytest.raises(ProteusError, match=r"pictures by URL are off; limit: \[fetch\] hosts"):
            await door(models).answer(asked, Client())

    run(scenario())


def by_url(*urls: str, **fields: Any) -> Call:
    content = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    document = json.dumps({"messages": [{"role": "user", "content": content}], **fields}).encode()
    return Call(document=document, attached=(), context=Context(parameters={}))


def door_to_the_web(fetch: Callable[[str], Awaitable[bytes]], monkeypatch: pytest.MonkeyPatch) -> Chat:
    monkeypatch.setattr(Fetcher, "fetch", lambda _, url: fetch(url))
    return door(Models())


def test_a_url_that_gives_no_picture_is_named_by_the_number_of_its_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fetch(url: str) -> bytes:
        if url.endswith("b"):
            raise FetchFailed("the picture's host answered 404")
        return RED

    async def scenario() -> None:
        with pytest.raises(FetchFailed, match="picture 3: the picture's host answered 404"):
            await chat.answer(by_url("http://x/a", "http://x/a", "http://x/b"), Client())
        assert is_empty(chat)

    chat = door_to_the_web(fetch, monkeypatch)
    run(scenario())


def test_a_deadline_ends_fetching(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fetch(url: str) -> bytes:
        await asyncio.Event().wait()
        return RED

    async def scenario() -> None:
        with pytest.raises(DeadlineExceeded, match=r"on their way; limit: the request's deadline; fix: allow more"):
            await chat.answer(by_url("http://x/a", deadline_ms=50), Client())
        assert is_empty(chat)

    chat = door_to_the_web(fetch, monkeypatch)
    run(scenario())


def test_a_deadline_ends_encoding() -> None:
    async def scenario() -> None:
        models = Models()
        chat = door(models, requests=4, queued=4)
        models.go_on.clear()
        with pytest.raises(DeadlineExceeded, match=r"being encoded; limit: the request's deadline; fix: allow more"):
            await chat.answer(call("?", RED, deadline_ms=50), Client())
        assert (models.calls, is_empty(chat)) == ([], True)

    run(scenario())


def test_the_more_requests_are_open_the_less_often_each_client_is_looked_for() -> None:
    async def scenario() -> None:
        models = Models()
        chat = door(models, requests=1, queued=200)
        models.go_on.clear()
        looks = 0

        class Watched(Client):
            def is_cancelled(self) -> bool:
                nonlocal looks
                looks += 1
                return False

        tasks = [asyncio.create_task(chat.answer(call("?"), Watched())) for _ in range(160)]
        while chat.figures().admission.queued["text"] < 159:
            await asyncio.sleep(0.001)
        looks = 0
        await asyncio.sleep(1.0)
        assert 0 < looks <= 1.5 * POLLS_PER_S
        models.go_on.set()
        await asyncio.gather(*tasks)
        assert is_empty(chat)

    run(scenario())
