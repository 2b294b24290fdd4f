"""What the doors note of each request: how it ended, and its times by what it was."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

import pytest

from proteus.backend.fleet import Context, LlmCall, LlmEvent
from proteus.door import observed
from proteus.door.arrival import Call
from proteus.door.chat import Chat
from proteus.door.draw import Draw
from proteus.door.observed import DRAW_HISTOGRAMS, HISTOGRAMS, KIND, Observation, Observed
from proteus.errors import InvalidRequest, ProteusError, QueueFull
from tests.door.draw_models import DrawClient, DrawModels, draw_call, draw_door
from tests.door.test_chat import BLUE, END, RED, Client, Models, call, door, run
from tests.preprocess.pictures import encode, noise

STOP = b'{"stop": {"request_id": "nobody\'s"}}'
LARGE = encode(noise(1200, 900, 3))


def split(seen: Sequence[Observation]) -> dict[str, list[tuple[str, ...]]]:
    """Labels by histogram."""
    found: dict[str, list[tuple[str, ...]]] = {histogram.name: [] for histogram in HISTOGRAMS}
    for one in seen:
        found[one.name].append(one.labels)
    return found


async def ask(chat: Chat, asked: Call, client: Client | None = None) -> None:
    """As the model of the door does."""
    with chat.observed.request() as ending:
        await chat.answer(replace(asked, ending=ending), client or Client())


async def draw(door: Draw, asked: Call, client: DrawClient | None = None) -> None:
    with door.observed.request() as ending:
        await door.answer(replace(asked, ending=ending), client or DrawClient())


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        (call("What?"), ("text", "none", "none", "text")),
        (call("What?", RED), ("image", "0.25 MP", "auto", "media")),
        (call("What?", RED, LARGE), ("images", "4 MP", "auto", "media")),
        (call("What?", RED, RED), ("images", "0.25 MP", "auto", "media")),
        (call("What?", RED, latency_class="batch"), ("image", "0.25 MP", "auto", "batch")),
    ],
    ids=["text", "picture", "two pictures, by the larger", "one picture twice", "batch"],
)
def test_times_are_told_by_what_the_request_was(asked: Call, kind: tuple[str, ...]) -> None:
    async def scenario() -> None:
        chat = door(Models())
        await ask(chat, asked)
        seen = split(chat.observed.take())
        assert seen["proteus_ttft_seconds"] == [kind]
        assert seen["proteus_inter_token_seconds"] == [kind]
        assert {labels[1:] for labels in seen["proteus_stage_seconds"]} == {kind}
        assert chat.observed.take() == [], "each is told once"

    run(scenario())


def test_tiers_that_differ_are_mixed() -> None:
    async def scenario() -> None:
        chat = door(Models())
        asked = call("?", RED, BLUE)
        document = asked.document.replace(b'{"type": "image"}', b'{"type": "image", "detail": "low"}', 1)
        await ask(chat, replace(asked, document=document))
        (labels,) = split(chat.observed.take())["proteus_ttft_seconds"]
        assert labels[KIND.index("tier")] == "mixed"

    run(scenario())


def test_a_hit_of_a_cache_is_in_no_stage() -> None:
    async def scenario() -> None:
        chat = door(Models())
        await ask(chat, call("?", RED))
        first = {labels[0] for labels in split(chat.observed.take())["proteus_stage_seconds"]}
        await ask(chat, call("?", RED))
        second = {labels[0] for labels in split(chat.observed.take())["proteus_stage_seconds"]}
        assert first - second == {"preprocess", "encoder_queue", "encode", "connector"}

    run(scenario())


def test_pixels_and_visual_tokens_are_counted_by_where_they_came_from() -> None:
    async def scenario() -> None:
        models = Models()
        chat = door(models)
        await ask(chat, call("?", RED, BLUE, RED))
        await ask(chat, call("?", RED))
        models.pixels_saved_us = 5
        await ask(chat, call("?", LARGE))
        tokens = models.visual_tokens
        assert chat.figures().values("proteus_visual_tokens_total") == {"encoded": 4 * tokens, "cached": tokens}
        decoded = {"": 2 * 20 * 16}
        assert chat.figures().values("proteus_decoded_pixels_total") == decoded, "each once, and none of a cache"

    run(scenario())


def test_every_request_is_counted_once_by_how_it_ended() -> None:
    async def scenario() -> None:
        models = Models()
        chat = door(models)
        await ask(chat, call("?"))
        await ask(chat, replace(call("?"), document=STOP))
        with pytest.raises(InvalidRequest):
            await ask(chat, call("?", temperature=-1))
        models.llm_error = QueueFull("full")
        with pytest.raises(QueueFull):
            await ask(chat, call("?"))
        left = Client()
        left.gone = True
        models.llm_error = None
        models.go_on.clear()
        await ask(chat, call("?", RED), left)
        told = chat.figures().values("proteus_requests_total")
        assert told == {"served": 1, "stop": 1, "invalid_request": 1, "queue_full": 1, "cancelled": 1}

    run(scenario())


def test_an_answer_that_its_client_left_is_cancelled_and_its_times_are_told() -> None:
    class Stopped(Models):
        async def generate(self, sent: LlmCall, context: Context) -> AsyncGenerator[LlmEvent, None]:
            yield LlmEvent(text="Hi", token_ids=(7,), end=replace(END, finish_reason="cancelled"))

    async def scenario() -> None:
        chat = door(Stopped())
        await ask(chat, call("?"))
        assert chat.figures().values("proteus_requests_total") == {"cancelled": 1}
        assert len(split(chat.observed.take())["proteus_ttft_seconds"]) == 1

    run(scenario())


@pytest.mark.parametrize(
    ("raised", "outcome"),
    [(QueueFull("full"), "queue_full"), (ValueError(), "internal"), (asyncio.CancelledError(), "unavailable")],
)
def test_what_is_raised_is_the_outcome(raised: BaseException, outcome: str) -> None:
    seen = Observed()
    with pytest.raises(type(raised)), seen.request():
        raise raised
    assert seen.outcomes == {outcome: 1}


def test_more_than_can_be_told_is_counted_and_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(observed, "MAX_WAITING", 5)
        chat = door(Models())
        await ask(chat, call("?"))
        dropped = chat.figures().values("proteus_unobserved_total")[""]
        assert dropped > 0 and len(chat.observed.take()) == 5

    run(scenario())


def test_drawings_are_told_by_size_with_stages_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(observed, "MAX_SIZES", 1)
        door = draw_door(DrawModels())
        for size in ("64x64", "96x64", "64x64"):
            await draw(door, draw_call(size=size))
        seen = door.observed.take()
        assert {one.name for one in seen} == {histogram.name for histogram in DRAW_HISTOGRAMS}
        assert {one.labels[1:] for one in seen} == {("draw", size, "none", "media") for size in ("64x64", "other")}, (
            "more sizes than that are not told apart"
        )
        stages = {one.labels[0] for one in seen}
        assert {"parse", "admission", "condition", "queue", "denoise", "decode", "encode", "transfer"} <= stages
        assert "total" not in stages
        assert door.figures().values("proteus_draw_requests_total") == {"served": 3}

    run(scenario())


def test_drawings_that_are_left_or_refused_are_counted() -> None:
    async def scenario() -> None:
        models, left = DrawModels(), DrawClient()
        door = draw_door(models)
        left.gone = True
        models.gates["condition"].clear()
        await draw(door, draw_call(), left)
        with pytest.raises(ProteusError):
            await draw(door, draw_call(steps=-1))
        await draw(door, replace(draw_call(), document=STOP))
        told = door.figures().values("proteus_draw_requests_total")
        assert told == {"cancelled": 1, "invalid_request": 1, "stop": 1}
        assert door.observed.take() == []

    run(scenario())


def test_every_label_has_a_name() -> None:
    for histogram in HISTOGRAMS:
        assert histogram.labels[-len(KIND) :] == KIND
        assert list(histogram.buckets) == sorted(histogram.buckets)
