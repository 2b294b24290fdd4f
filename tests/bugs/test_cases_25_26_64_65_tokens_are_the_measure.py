"""Seen: 11.9 MB of video sent as 33 pictures kill an engine (25); a picture of 640x640 in a short context gives an
empty answer (26); `max_tokens` is worked out before the pictures are expanded and the request is refused (64); `usage`
counts a picture as 0 tokens or as one (65).

Cause: bytes, or the text alone, were taken for the size of a request.
Right: every decision and every bill is of the expanded prompt, before anything is decoded. The requests here are small
in bytes and large in tokens, so that anything that looks at bytes lets them through.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from PIL import Image

from proteus.admission.ask import Ask
from proteus.admission.gate import Gate
from proteus.cost.planner import Planner
from proteus.cost.vector import ResourceVector
from proteus.errors import MediaTooLarge, PromptTooLong, QueueFull
from proteus.limits import Resources
from proteus.media.header import PictureHeader
from tests.admission.asks import limits_of
from tests.bugs.door import PICTURE, asked, text, untouched
from tests.bugs.folders import family_of
from tests.door.test_chat import DEMO, FAMILY, Models
from tests.preprocess.pictures import encode

LARGE = PictureHeader(format="jpeg", width_px=2688, height_px=2100)  # 7,200 visual tokens of Qwen2.5-VL
LARGE_BYTES = 11_900_000 // 33
SMALL = encode(Image.new("RGB", (640, 640), "red"))


def ask_of_pictures(number: int) -> Ask:
    cost = Planner(family=family_of("Qwen2.5-VL-7B")).picture(LARGE, LARGE_BYTES, images_in_request=number)
    assert cost.plan.visual_tokens == 7200
    vector = sum([cost.resources] * number, ResourceVector(requests=1, text_tokens=20, output_tokens=100))
    return Ask(vector=vector, latency_class="media", tenant="ann", model="chat")


@pytest.mark.parametrize("table", ["request", "capacity"])
def test_33_large_pictures_are_refused_by_their_tokens_however_few_their_bytes(table: str) -> None:
    limits = limits_of(Resources(visual_tokens=65_536, media_bytes=100_000_000))
    if table == "request":
        request, capacity = Resources(visual_tokens=65_536), Resources(visual_tokens=10**9)
        limits = limits_of(capacity, request=request)

    async def scenario() -> None:
        gate = Gate(limits)
        with pytest.raises(MediaTooLarge, match=rf"visual_tokens = 237,600; limit: \[admission.{table}\] .* = 65,536"):
            async with gate.admitted(ask_of_pictures(33)):
                pass
        async with gate.admitted(ask_of_pictures(9)):
            assert gate.snapshot().held["visual_tokens"] == 64_800
        assert not any(gate.snapshot().held.values())

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_33_pictures_in_33_requests_take_turns_by_their_tokens() -> None:
    """The same flood in pieces: never more tokens at once than there is room for, and everybody is answered."""

    async def scenario() -> None:
        gate = Gate(limits_of(Resources(visual_tokens=16_384), max_queue=20))
        most = 0

        async def one() -> None:
            nonlocal most
            async with gate.admitted(ask_of_pictures(1)):
                most = max(most, gate.snapshot().held["visual_tokens"])
                await asyncio.sleep(0)

        told = await asyncio.gather(*(one() for _ in range(33)), return_exceptions=True)
        assert most == 2 * 7200
        assert [type(error) for error in told if error is not None] == [QueueFull] * (33 - 2 - 20)

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_33_pictures_are_refused_by_their_number_at_the_door() -> None:
    models = Models()
    with pytest.raises(MediaTooLarge, match=r"33 pictures in one request; limit: \[image\] max_pictures = 4"):
        asked(*[SMALL] * 33, content=[PICTURE] * 33, models=models)
    assert untouched(models)


def short_context(monkeypatch: pytest.MonkeyPatch, tokens: int) -> None:
    llm = DEMO.llm.model_copy(update={"context_tokens": tokens})
    monkeypatch.setattr("tests.door.test_chat.DEMO", DEMO.model_copy(update={"llm": llm}))


@pytest.mark.parametrize("context_tokens", [1, FAMILY.visual_tokens, 40])
def test_640_square_in_a_short_context_is_refused_and_never_answered_with_nothing(
    context_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    short_context(monkeypatch, context_tokens)
    models = Models()
    with pytest.raises(PromptTooLong, match=r"the prompt has \d+ tokens, 36 of them visual; limit: \[llm\] context_to"):
        asked(SMALL, content=[PICTURE, text("?")], models=models)
    assert untouched(models)


def test_what_is_left_for_the_answer_is_counted_after_the_pictures_are_expanded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    content = [PICTURE, text("?")]
    short_context(monkeypatch, 60)
    _, models = asked(SMALL, content=content)
    (call,) = models.calls
    left = 60 - len(call.input_ids)
    assert 1 <= left < DEMO.text.default_max_tokens
    assert json.loads(call.sampling)["max_tokens"] == left
    asked(SMALL, content=content, max_tokens=left)
    with pytest.raises(PromptTooLong, match=f"fix: lower max_tokens to {left}$"):
        asked(SMALL, content=content, max_tokens=left + 1)


def usage(*pictures: bytes, content: list[dict[str, Any]]) -> dict[str, int]:
    client, models = asked(*pictures, content=content)
    told: dict[str, int] = client.reports[0]["usage"]
    assert told["text_tokens"] + told["visual_tokens"] == len(models.calls[0].input_ids), "the bill is of what was read"
    return told


def test_usage_is_that_of_the_expanded_prompt() -> None:
    large = encode(Image.new("RGB", (1024, 1024), "red"))
    plain = usage(content=[text("?")])
    one, two = usage(large, content=[PICTURE, text("?")]), usage(large, large, content=[PICTURE, PICTURE, text("?")])
    assert [told["visual_tokens"] for told in (plain, one, two)] == [0, 36, 72]
    assert plain["text_tokens"] == one["text_tokens"] == two["text_tokens"], "a placeholder is no text"
