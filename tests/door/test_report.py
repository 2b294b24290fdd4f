"""What the report of a request says: its stages, its waits, its caches and its pictures."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest

from proteus.backend.fleet import Context, LlmCall, LlmEvent
from proteus.clock import clock_name
from proteus.door.arrival import Call
from proteus.door.chat import Chat
from proteus.language.prompt import PromptRenderer
from tests.door.test_chat import (
    BLUE,
    DEMO,
    DETOKENIZER,
    END,
    FAMILY,
    LAST,
    MANIFEST,
    RED,
    Client,
    Models,
    call,
    door,
    run,
)
from tests.preprocess.pictures import encode, noise


def test_picture_of_the_encoder_cache_is_told_from_a_new_one_and_has_no_stage() -> None:
    async def scenario() -> None:
        models, new, again, other = Models(), Client(), Client(), Client()
        chat = door(models)
        for question, client in (("?", new), ("And now?", again), ("And this?", other)):
            await chat.answer(call(question, RED, *([BLUE] if client is other else [])), client)
        assert [client.reports[0]["pictures"] for client in (new, again, other)] == [
            ["encoded"],
            ["cached"],
            ["cached", "encoded"],
        ]
        encoding = {"preprocess", "encoder_queue", "encode", "connector"}
        assert encoding <= new.reports[0]["stages_ms"].keys()
        assert not encoding & again.reports[0]["stages_ms"].keys()
        assert encoding <= other.reports[0]["stages_ms"].keys(), "of the picture that is new"
        uses = [client.reports[0]["caches"]["encoder"] for client in (new, again, other)]
        assert [(use["lookups"], use["hits"]) for use in uses] == [(1, 0), (1, 1), (2, 1)]
        assert uses[0]["saved_ms"] == 0 < uses[1]["saved_ms"] == uses[2]["saved_ms"], "what encoding it had taken"
        assert [len(models.encoded), models.encoded[1][0]] == [2, BLUE]

    run(scenario())


def test_pixels_of_the_processor_cache_are_a_hit_and_no_stage() -> None:
    async def scenario() -> None:
        models, client = Models(), Client()
        models.pixels_saved_us = 12_500
        await door(models).answer(call("?", RED), client)
        report = client.reports[0]
        assert report["caches"]["processor"] == {"lookups": 1, "hits": 1, "saved_ms": 12.5}
        assert report["pictures"] == ["encoded"]
        assert "preprocess" not in report["stages_ms"]
        assert {"encoder_queue", "encode", "connector"} <= report["stages_ms"].keys()

    run(scenario())


@pytest.mark.parametrize("off", ["processor", "encoder", "prefix"])
def test_a_cache_that_is_off_is_not_asked(off: str) -> None:
    async def scenario() -> None:
        llm = DEMO.llm.model_copy(update={"prefix_cache": DEMO.llm.prefix_cache.model_copy(update={"max_bytes": 0})})
        changes: dict[str, Any] = {
            "processor": {"processor_cache": DEMO.processor_cache.model_copy(update={"max_bytes": 0})},
            "encoder": {"encoder_cache": DEMO.encoder_cache.model_copy(update={"max_bytes": 0})},
            "prefix": {"llm": llm},
        }
        renderer = PromptRenderer.from_checkpoint(DEMO.checkpoint_path)
        chat = Chat(DEMO.model_copy(update=changes[off]), MANIFEST, FAMILY, renderer, DETOKENIZER, Models())
        client = Client()
        await chat.answer(call("?", RED), client)
        caches = client.reports[0]["caches"]
        assert {name: use["lookups"] for name, use in caches.items()} == {
            "processor": 1,
            "encoder": 1,
            "prefix": 1,
        } | {off: 0}
        assert chat.cache_figures().values("proteus_encoder_cache_lookups_total") == {"": int(off != "encoder")}

    run(scenario())


def sent_at(ns: int, clock: str | None = None) -> dict[str, Any]:
    return {"clock": clock or clock_name(), "ns": ns}


def test_ingress_begins_when_the_client_sent_the_request_where_both_have_one_clock() -> None:
    async def transport_ms(sent: dict[str, Any]) -> float | None:
        client = Client()
        await door(Models()).answer(call("?", sent=sent), client)
        report = client.reports[0]
        before = {stage: ms for stage, ms in report["stages_ms"].items() if stage not in ("decode", "total")}
        assert sum(before.values()) == pytest.approx(report["ttft_ms"], abs=0.01)
        assert report["stages_ms"]["ingress"] >= sum(report["ingress_ms"].values()) - 0.01
        return cast(float | None, report["ingress_ms"].get("transport"))

    async def scenario() -> None:
        now_ns = time.monotonic_ns()
        told = await transport_ms(sent_at(now_ns - 50_000_000))
        assert told is not None
        assert told >= 50
        assert await transport_ms(sent_at(now_ns, clock="another")) is None
        assert await transport_ms(sent_at(now_ns + 10**12)) is None, "in the future"
        assert await transport_ms(sent_at(max(0, time.monotonic_ns() - 61 * 10**9))) is None, "too long ago"

    run(scenario())


def test_time_to_the_first_token_is_told_and_the_waits_between_tokens() -> None:
    class Slow(Models):
        async def generate(self, call: LlmCall, context: Context) -> AsyncGenerator[LlmEvent, None]:
            for token_id in range(3):
                await asyncio.sleep(0.02)
                yield LlmEvent(text="x", token_ids=(token_id,), end=None)
            yield LlmEvent(text="", token_ids=(), end=END)

    async def scenario() -> None:
        client = Client()
        await door(Slow()).answer(call("?"), client)
        report = client.reports[0]
        assert report["ttft_ms"] >= 20
        gaps = report["inter_token_ms"]
        assert 20 <= gaps["mean"] <= gaps["max"]
        assert report["stages_ms"]["decode"] >= 2 * 20
        assert report["media"] == []

    run(scenario())


def test_answer_of_one_token_has_no_wait_between_tokens() -> None:
    class Brief(Models):
        async def generate(self, call: LlmCall, context: Context) -> AsyncGenerator[LlmEvent, None]:
            yield LAST

    async def scenario() -> None:
        client = Client()
        await door(Brief()).answer(call("?"), client)
        assert client.reports[0]["inter_token_ms"] is None
        assert client.reports[0]["ttft_ms"] > 0

    run(scenario())


def test_report_tells_each_picture_of_the_prompt() -> None:
    async def scenario() -> None:
        large, client = encode(noise(900, 700, 2)), Client()
        content = [{"type": "image"}, {"type": "image", "detail": "low"}, {"type": "image"}]
        document = {"messages": [{"role": "user", "content": content}]}
        sent = Call(document=json.dumps(document).encode(), attached=(RED, large, RED), context=Context(parameters={}))
        await door(Models()).answer(sent, client)
        small = {
            "size": "0.25 MP",
            "bucket": "96x96 tiles",
            "tier": "auto",
            "downscaled": False,
            "visual_tokens": FAMILY.visual_tokens,
        }
        assert client.reports[0]["media"] == [
            small,
            small | {"size": "1 MP", "tier": "low", "downscaled": True},
            small,
        ]
        assert client.reports[0]["pictures"] == ["encoded", "encoded"]

    run(scenario())
