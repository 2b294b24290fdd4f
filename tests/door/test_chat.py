"""The way through the stages, with models whose answers and failures the test decides."""

from __future__ import annotations

import asyncio
import json
import time
import zlib
from collections.abc import AsyncGenerator, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proteus.backend.fleet import Context, EncodedPicture, LlmCall, LlmEnd, LlmEvent
from proteus.cache.key import scope_key
from proteus.deployment import Deployment
from proteus.door.arrival import Call
from proteus.door.chat import Chat
from proteus.door.reply import Piece
from proteus.errors import (
    InternalError,
    InvalidPicture,
    InvalidRequest,
    PromptTooLong,
    ProteusError,
    QueueFull,
    Unavailable,
)
from proteus.families.llava import LlavaFamily
from proteus.language.prompt import PromptRenderer
from proteus.language.stream import Detokenizer
from proteus.language.tokenizer import load_tokenizer
from proteus.limits import AdmissionLimits
from proteus.manifest import Manifest
from proteus.stages import STAGES, EncodeMarks
from tests.preprocess.pictures import encode, noise

DEMO = Deployment.load(Path(__file__).parents[2] / "deployments" / "demo.toml")
FAMILY = LlavaFamily.from_checkpoint(DEMO.checkpoint_path)
DETOKENIZER = Detokenizer(load_tokenizer(DEMO.checkpoint_path))
WIDTH = 8
MANIFEST = Manifest(
    format=1,
    revision="00ff",
    image_size=FAMILY.image_size_px,
    visual_tokens=FAMILY.visual_tokens,
    hidden_size=WIDTH,
    vocab_size=512,
    context_tokens=1024,
)
RED, BLUE = encode(noise(20, 16, 0)), encode(noise(20, 16, 1))
END = LlmEnd(finish_reason="stop", cached_tokens=0, queue_us=1000, prefill_us=2000, decode_us=3000)
LAST = LlmEvent(text="!", token_ids=(9,), end=END)


def shown_by(picture: bytes) -> float:
    """What the fake encoder sees in a picture: another number in each, exact as float32."""
    return zlib.crc32(picture) % 2**24


class Models:
    """Visual tokens are `shown_by` the picture; the language model says two pieces."""

    def __init__(self) -> None:
        self.encoded: list[tuple[bytes, bytes]] = []  # picture, scope key
        self.targets: list[tuple[int, int] | None] = []
        self.calls: list[LlmCall] = []
        self.stopped: list[bytes] = []
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.pixels_saved_us = 0
        self.visual_tokens = FAMILY.visual_tokens
        self.encode_error: ProteusError | None = None
        self.encoder_now = self.encoded_by = ""
        self.llm_error: ProteusError | None = None

    async def encoder(self) -> str:
        return self.encoder_now

    async def image_tokens(
        self, picture: bytes, scope_key: bytes, context: Context, target_px: tuple[int, int] | None = None
    ) -> EncodedPicture:
        self.encoded.append((picture, scope_key))
        self.targets.append(target_px)
        marks = [time.monotonic_ns() for _ in range(6)]
        await self.go_on.wait()
        if self.encode_error is not None:
            raise self.encode_error
        return EncodedPicture(
            visual_tokens=np.full((self.visual_tokens, WIDTH), shown_by(picture), dtype=np.float32),
            marks=EncodeMarks(
                preprocess=(marks[0], marks[1]), encoder=(marks[2], marks[3]), connector=(marks[4], marks[5])
            ),
            preprocess_saved_us=self.pixels_saved_us,
            encoder=self.encoded_by,
        )

    async def generate(self, call: LlmCall, context: Context) -> AsyncGenerator[LlmEvent, None]:
        self.calls.append(call)
        yield LlmEvent(text="Hi", token_ids=(7, 8), end=None)
        if self.llm_error is not None:
            raise self.llm_error
        while call.request_key not in self.stopped and not self.go_on.is_set():
            await asyncio.sleep(0)
        yield LAST

    async def stop(self, request_key: bytes) -> None:
        self.stopped.append(request_key)


class Client:
    """Keeps what it is sent; leaves when told."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.text = ""
        self.token_ids: list[int] = []
        self.reports: list[dict[str, Any]] = []
        self.gone = False

    def send(self, piece: Piece) -> None:
        assert not self.reports, "a piece after the report"
        self.pieces.append(piece)
        self.text += piece.text
        self.token_ids += piece.token_ids
        if piece.report is not None:
            self.reports.append(json.loads(piece.report))

    def is_cancelled(self) -> bool:
        return self.gone


def door(models: Models, **admission: Any) -> Chat:
    """With `admission` other than the demo's: `requests` at once, `queued` of each class."""
    deployment = DEMO
    if admission:
        queue = {"max_queue": admission["queued"], "weight": 1}
        table = {
            "capacity": {"requests": admission["requests"]},
            "request": {},
            "queues": {"text": queue, "media": queue, "batch": queue},
            "max_open_bytes": admission.get("max_open_bytes", 10**9),
            "max_wait_ms": 10_000,
        }
        deployment = DEMO.model_copy(update={"admission": AdmissionLimits.model_validate(table)})
    renderer = PromptRenderer.from_checkpoint(DEMO.checkpoint_path)
    return Chat(deployment, MANIFEST, FAMILY, renderer, DETOKENIZER, models)


def call(*parts: str | bytes, parameters: dict[str, Any] | None = None, **fields: Any) -> Call:
    """A question of texts and pictures, in order."""
    content = [{"type": "text", "text": part} if isinstance(part, str) else {"type": "image"} for part in parts]
    document = json.dumps({"messages": [{"role": "user", "content": content}], **fields}).encode()
    attached = tuple(part for part in parts if isinstance(part, bytes))
    return Call(document=document, attached=attached, context=Context(parameters=parameters or {}))


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 20))


def test_answer_is_streamed_and_ends_with_one_report() -> None:
    async def scenario() -> None:
        client = Client()
        await door(Models()).answer(call("What is it?", RED), client)
        assert (client.text, client.token_ids) == ("Hi!", [7, 8, 9])
        (report,) = client.reports
        assert report["finish_reason"] == "stop"
        assert report["usage"]["visual_tokens"] == FAMILY.visual_tokens
        assert report["usage"]["output_tokens"] == 3
        assert report["pictures"] == ["encoded"]
        stages = report["stages_ms"]
        assert list(stages) == [*STAGES, "total"]
        assert (stages["lm_queue"], stages["prefill"]) <= (1.0, 2.0), "never more than there was time for"

    run(scenario())


def test_rows_and_spans_follow_the_order_of_the_pictures() -> None:
    async def scenario() -> None:
        models = Models()
        await door(models).answer(call("a", BLUE, "b", RED, "c", BLUE), Client())
        (sent,) = models.calls
        ids = np.array(sent.input_ids)
        assert sent.visual_tokens is not None
        firsts = sent.visual_tokens[:: FAMILY.visual_tokens, 0].tolist()
        assert firsts == [shown_by(BLUE), shown_by(RED), shown_by(BLUE)]
        assert [length for _, length in sent.visual_spans] == [FAMILY.visual_tokens] * 3
        for start, length in sent.visual_spans:
            assert set(ids[start : start + length]) == {FAMILY.image_token_id}
        assert len(models.encoded) == 2, "the same picture twice is encoded once"

    run(scenario())


def test_text_only_question_touches_no_picture_model() -> None:
    async def scenario() -> None:
        models = Models()
        await door(models).answer(call("What is a circle?"), Client())
        assert models.encoded == []
        assert (models.calls[0].visual_tokens, models.calls[0].media_keys) == (None, ())

    run(scenario())


def test_many_requests_for_one_picture_encode_it_once() -> None:
    async def scenario() -> None:
        models = Models()
        models.go_on.clear()
        chat = door(models)
        clients = [Client() for _ in range(16)]
        tasks = [asyncio.create_task(chat.answer(call("?", RED), client)) for client in clients]
        while not models.encoded:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.2)
        models.go_on.set()
        await asyncio.gather(*tasks)
        assert len(models.encoded) == 1
        sources = [client.reports[0]["pictures"][0] for client in clients]
        assert sorted(sources) == ["encoded"] + ["shared"] * 15

    run(scenario())


def test_other_cache_scope_never_shares_a_key() -> None:
    async def scenario() -> None:
        models = Models()
        chat = door(models)
        for scope in ("", "tenant a", "tenant b", "tenant a"):
            await chat.answer(call("?", RED, cache_scope=scope), Client())
        scope_keys = [key for _, key in models.encoded]
        assert scope_keys == [scope_key(scope) for scope in ("", "tenant a", "tenant b")], "the fourth is a hit"
        keys = [sent.media_keys for sent in models.calls]
        assert keys[1] == keys[3]
        assert len(set(keys)) == 3

    run(scenario())


def test_pictures_whose_keys_have_one_digest_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole keys are compared: a digest of 32 bytes that two pictures share finds neither for the other."""
    monkeypatch.setattr("proteus.door.encoding.picture_key", lambda fields: bytes(32))

    async def scenario() -> None:
        models = Models()
        chat = door(models)
        for picture in (RED, BLUE, RED):
            await chat.answer(call("?", picture), Client())
        assert [picture for picture, _ in models.encoded] == [RED, BLUE, RED]
        firsts = [sent.visual_tokens[0, 0] for sent in models.calls if sent.visual_tokens is not None]
        assert firsts == [shown_by(RED), shown_by(BLUE), shown_by(RED)]

    run(scenario())


def test_pictures_whose_keys_have_one_digest_are_told_apart_while_both_are_encoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("proteus.door.encoding.picture_key", lambda fields: bytes(32))

    async def scenario() -> None:
        models = Models()
        await door(models).answer(call("?", RED, BLUE), Client())
        (sent,) = models.calls
        assert sent.visual_tokens is not None
        assert sent.visual_tokens[:: FAMILY.visual_tokens, 0].tolist() == [shown_by(RED), shown_by(BLUE)]

    run(scenario())


def test_prompt_that_does_not_fit_is_refused_before_any_picture_is_encoded() -> None:
    async def scenario() -> None:
        models = Models()
        chat = door(models)
        with pytest.raises(PromptTooLong, match=r"tokens, 36 of them visual; limit: \[llm\] context_tokens = 1024"):
            await chat.answer(call("word " * 3000, RED), Client())
        with pytest.raises(PromptTooLong, match=r"max_tokens = 1024; limit.*fix: lower max_tokens to \d+"):
            await chat.answer(call("?", RED, max_tokens=1024), Client())
        assert (models.encoded, models.calls) == ([], [])

    run(scenario())


def test_max_tokens_left_out_is_the_default_or_what_the_context_leaves() -> None:
    async def scenario() -> None:
        models = Models()
        chat = door(models)
        await chat.answer(call("?"), Client())
        await chat.answer(call("? " * 480), Client())
        short, long = (json.loads(sent.sampling)["max_tokens"] for sent in models.calls)
        assert short == DEMO.text.default_max_tokens
        assert long == DEMO.llm.context_tokens - len(models.calls[1].input_ids) < short

    run(scenario())


def test_more_requests_than_may_be_open_are_told_to_come_back_and_places_are_given_back() -> None:
    async def scenario() -> None:
        models = Models()
        models.go_on.clear()
        chat = door(models, requests=2, queued=0)
        tasks = [asyncio.create_task(chat.answer(call("?", RED), Client())) for _ in range(2)]
        while not models.encoded:
            await asyncio.sleep(0.001)
        with pytest.raises(QueueFull, match=r"2 requests are open"):
            await chat.answer(call("?"), Client())
        models.go_on.set()
        await asyncio.gather(*tasks)
        for _ in range(3):
            with pytest.raises(InvalidRequest):
                await chat.answer(call("?", colour="red"), Client())
        await chat.answer(call("?"), Client())

    run(scenario())


def test_client_that_leaves_has_its_request_stopped() -> None:
    async def scenario() -> None:
        models, client = Models(), Client()
        models.go_on.clear()
        task = asyncio.create_task(door(models).answer(call("?"), client))
        while not models.calls:
            await asyncio.sleep(0.001)
        assert models.stopped == []
        client.gone = True
        await task
        assert models.stopped == [models.calls[0].request_key]

    run(scenario())


def test_broken_client_connection_stops_the_request_too() -> None:
    async def scenario() -> None:
        models = Models()

        class Broken(Client):
            def send(self, piece: Piece) -> None:
                raise OSError("gone")

        with pytest.raises(OSError, match="gone"):
            await door(models).answer(call("?"), Broken())
        assert models.stopped == [models.calls[0].request_key]

    run(scenario())


@pytest.mark.parametrize("error", [Unavailable("llm does not answer"), QueueFull("full")])
def test_error_of_the_language_model_reaches_the_client(error: ProteusError) -> None:
    async def scenario() -> None:
        models = Models()
        models.llm_error = error
        with pytest.raises(type(error)):
            await door(models).answer(call("?"), Client())
        assert models.stopped == []

    run(scenario())


def test_error_of_a_picture_is_that_of_every_request_that_shares_it() -> None:
    async def scenario() -> None:
        models = Models()
        models.go_on.clear()
        models.encode_error = InvalidPicture("truncated")
        chat = door(models)
        tasks = [asyncio.create_task(chat.answer(call("?", RED), Client())) for _ in range(8)]
        while not models.encoded:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.2)
        models.go_on.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [InvalidPicture] * 8
        assert len(models.encoded) == 1
        assert models.calls == []

    run(scenario())


def test_visual_tokens_that_are_not_the_planned_ones_never_reach_the_language_model() -> None:
    async def scenario() -> None:
        models = Models()
        models.visual_tokens = FAMILY.visual_tokens - 1
        with pytest.raises(InternalError):
            await door(models).answer(call("?", RED), Client())
        assert models.calls == []

    run(scenario())


def test_unknown_request_parameter_is_refused() -> None:
    async def scenario() -> None:
        with pytest.raises(InvalidRequest, match="unknown request parameter max_tokens, top_p; fix: put every field"):
            await door(Models()).answer(call("?", parameters={"top_p": 1, "max_tokens": 5}), Client())

    run(scenario())
