"""A request with a name can be stopped by whoever has the same tenant and cache scope, in any stage; by nobody else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from proteus.backend.fleet import Context
from proteus.door.arrival import Call
from proteus.door.chat import Chat
from proteus.errors import InvalidPicture, InvalidRequest, QueueFull
from proteus.media.fetch import Fetcher
from tests.door.test_admission import by_url, is_empty
from tests.door.test_chat import RED, Client, Models, call, door, run


def stop_call(request_id: object, **fields: Any) -> Call:
    document = json.dumps({"stop": {"request_id": request_id, **fields}}).encode()
    return Call(document=document, attached=(), context=Context(parameters={}))


async def stop(chat: Chat, request_id: str, **fields: Any) -> dict[str, Any]:
    client = Client()
    await chat.answer(stop_call(request_id, **fields), client)
    (piece,) = client.pieces
    assert (piece.text, piece.token_ids) == ("", ())
    return client.reports[0]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


STAGES = ("fetch", "queue", "encode", "decode")


@pytest.mark.parametrize("stage", STAGES)
def test_a_request_is_stopped_by_its_id_in_every_stage(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fetching: list[str] = []

    async def fetch(_: Fetcher, url: str) -> bytes:
        fetching.append(url)
        await asyncio.Event().wait()
        return RED

    monkeypatch.setattr(Fetcher, "fetch", fetch)

    async def scenario() -> None:
        models, client = Models(), Client()
        chat = door(models, requests=1, queued=4)
        models.go_on.clear()
        before = asyncio.create_task(chat.answer(call("?"), Client())) if stage == "queue" else None
        await until(lambda: before is None or bool(models.calls))
        asked = {
            "fetch": by_url("http://x/a", request_id="mine"),
            "queue": call("?", request_id="mine"),
            "encode": call("?", RED, request_id="mine"),
            "decode": call("?", request_id="mine"),
        }[stage]
        reached: dict[str, Callable[[], bool]] = {
            "fetch": lambda: bool(fetching),
            "queue": lambda: chat.figures().admission.queued["text"] == 1,
            "encode": lambda: bool(models.encoded),
            "decode": lambda: bool(client.pieces),
        }
        answering = asyncio.create_task(chat.answer(asked, client))
        await until(reached[stage])
        assert await stop(chat, "mine") == {"stopped": 1}
        await answering
        assert len(client.reports) == 1
        if stage == "decode":
            assert models.stopped == [models.calls[0].request_key]
        else:
            assert client.reports[0]["finish_reason"] == "cancelled"
            assert models.stopped == []
        models.go_on.set()
        if before is not None:
            await before
        assert await stop(chat, "mine") == {"stopped": 0}, "it has ended"
        assert is_empty(chat)

    run(scenario())


@pytest.mark.parametrize(
    ("own", "other"),
    [
        ({}, {"tenant": "b"}),
        ({}, {"cache_scope": "b"}),
        ({"cache_scope": "a"}, {}),
        ({"cache_scope": "a"}, {"tenant": "a"}),
        ({"cache_scope": "a"}, {"cache_scope": "a", "tenant": "b"}),
        ({"tenant": "a", "cache_scope": "s"}, {"cache_scope": "s"}),
        ({"tenant": "a", "cache_scope": "s"}, {"tenant": "s", "cache_scope": "a"}),
    ],
)
def test_the_id_of_another_tenant_or_scope_is_as_unknown_as_one_that_never_was(
    own: dict[str, str], other: dict[str, str]
) -> None:
    async def scenario() -> None:
        models, client = Models(), Client()
        models.go_on.clear()
        chat = door(models)
        answering = asyncio.create_task(chat.answer(call("?", request_id="mine", **own), client))
        await until(lambda: bool(client.pieces))
        assert await stop(chat, "mine", **other) == await stop(chat, "never was", **own) == {"stopped": 0}
        assert models.stopped == []
        assert await stop(chat, "mine", **own) == {"stopped": 1}
        await answering

    run(scenario())


def test_a_tenant_left_out_is_the_cache_scope_in_both_documents() -> None:
    async def scenario() -> None:
        models, client = Models(), Client()
        models.go_on.clear()
        chat = door(models)
        answering = asyncio.create_task(chat.answer(call("?", request_id="mine", cache_scope="a"), client))
        await until(lambda: bool(client.pieces))
        assert await stop(chat, "mine", cache_scope="a", tenant="a") == {"stopped": 1}
        await answering

    run(scenario())


def test_an_id_is_used_once_at_a_time_in_a_scope_and_free_again_however_its_request_ended() -> None:
    async def scenario() -> None:
        models, client = Models(), Client()
        chat = door(models)
        models.go_on.clear()
        answering = asyncio.create_task(chat.answer(call("?", request_id="x"), client))
        await until(lambda: bool(client.pieces))
        with pytest.raises(InvalidRequest, match="request_id is that of another open request.*fix: choose another id"):
            await chat.answer(call("?", request_id="x"), Client())
        models.go_on.set()
        await chat.answer(call("?", request_id="x", tenant="other"), Client())
        await chat.answer(call("?", request_id="x", cache_scope="other"), Client())
        await answering
        models.encode_error = InvalidPicture("truncated")
        for _ in range(2):
            with pytest.raises(InvalidPicture):
                await chat.answer(call("?", RED, request_id="x"), Client())
        await chat.answer(call("?", request_id="x"), Client())
        assert is_empty(chat)

    run(scenario())


def test_all_answers_of_a_request_are_stopped_together() -> None:
    async def scenario() -> None:
        models, client = Models(), Client()
        models.go_on.clear()
        chat = door(models)
        answering = asyncio.create_task(chat.answer(call("?", request_id="mine", n=3), client))
        await until(lambda: len(client.pieces) == 3)
        assert await stop(chat, "mine") == {"stopped": 1}
        await answering
        assert set(models.stopped) == {sent.request_key for sent in models.calls}
        assert len(models.stopped) == 3

    run(scenario())


def test_a_stop_needs_no_seat() -> None:
    async def scenario() -> None:
        models, client = Models(), Client()
        chat = door(models, requests=1, queued=0)
        models.go_on.clear()
        answering = asyncio.create_task(chat.answer(call("?", request_id="mine"), client))
        await until(lambda: bool(client.pieces))
        with pytest.raises(QueueFull):
            await chat.answer(call("?"), Client())
        assert await stop(chat, "mine") == {"stopped": 1}
        await answering

    run(scenario())


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (b'{"stop": {}}', ["stop.request_id is missing"]),
        (b' { "stop" : {"request_id": ""}}', ['stop.request_id = ""', "at least 1 character"]),
        (b'{"stop": {"request_id": 7}}', ["stop.request_id = 7"]),
        (b'{"stop": {"request_id": "a\\n"}}', ["stop.request_id", "printable"]),
        (b'{"stop": {"request_id": "x"}, "messages": []}', ["unknown field messages"]),
        (b'{"stop": {"request_id": "x", "colour": 1}}', ["unknown field stop.colour"]),
        (b'{"stop": {"request_id": "x"}', ["not JSON"]),
    ],
)
def test_a_mistake_in_a_stop_is_named(document: bytes, words: list[str]) -> None:
    async def scenario() -> None:
        with pytest.raises(InvalidRequest) as caught:
            await door(Models()).answer(Call(document=document, attached=(), context=Context(parameters={})), Client())
        for word in [*words, "fix: "]:
            assert word in str(caught.value)

    run(scenario())


def test_a_stop_with_pictures_or_parameters_is_refused() -> None:
    async def scenario() -> None:
        document = stop_call("x").document
        with pytest.raises(InvalidRequest, match="came with pictures"):
            await door(Models()).answer(
                Call(document=document, attached=(RED,), context=Context(parameters={})), Client()
            )
        with pytest.raises(InvalidRequest, match="unknown request parameter x"):
            await door(Models()).answer(
                Call(document=document, attached=(), context=Context(parameters={"x": 1})), Client()
            )

    run(scenario())
