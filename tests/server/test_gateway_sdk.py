"""OpenAI's Python SDK as it is installed, through `proteus gateway` in front of the real server."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types import ImageGenCompletedEvent
from PIL import Image

from proteus.client import Client
from proteus.launcher import Server
from tests.server.figures import is_idle, metrics, until
from tests.server.gateway_process import gateway_of
from tests.server.test_ask import CHART, QUESTION

TEXTS = [f"What colour is circle {number}?" for number in range(6)]
DRAWING: dict[str, Any] = {"model": "demo-draw", "prompt": "a red circle", "size": "64x64"}


@pytest.fixture(scope="module")
def url(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with gateway_of(server, tmp_path_factory.mktemp("gateway")) as started:
        yield f"http://{started.addresses['gateway']}/v1"


@pytest.fixture
def sdk(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def said(question: str, *pictures: bytes) -> Any:
    urls = [f"data:image/png;base64,{base64.b64encode(picture).decode()}" for picture in pictures]
    shown = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [{"role": "user", "content": [*shown, {"type": "text", "text": question}]}]


def directly(server: Server, question: str, *pictures: bytes) -> str:
    with Client(server.ports.grpc_url) as client:
        return client.ask(question, list(pictures), max_tokens=8).text


def text_of(chunks: list[Any]) -> str:
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


def test_models_are_listed_and_told(sdk: openai.OpenAI) -> None:
    names = [model.id for model in sdk.models.list()]
    assert {"demo", "demo-draw", "auto"} <= set(names)
    assert sdk.models.retrieve("demo").id == "demo"
    with pytest.raises(openai.NotFoundError):
        sdk.models.retrieve("gpt-4o")


@pytest.mark.parametrize("pictures", [(), (CHART.read_bytes(),)], ids=["text", "a picture"])
def test_whole_and_streamed_answers_are_those_of_the_server(
    server: Server, sdk: openai.OpenAI, pictures: tuple[bytes, ...]
) -> None:
    asked: dict[str, Any] = {"model": "demo", "messages": said(QUESTION, *pictures), "max_tokens": 8}
    whole = sdk.chat.completions.create(**asked)
    streamed = list(sdk.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert whole.choices[0].message.content == text_of(streamed) == directly(server, QUESTION, *pictures)
    assert streamed[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_asynchronous_clients_ask_much_at_once(server: Server, url: str) -> None:
    async def scenario() -> tuple[list[str | None], list[str], list[Any]]:
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as sdk:

            async def whole(text: str) -> str | None:
                answer = await sdk.chat.completions.create(model="demo", messages=said(text), max_tokens=8)
                return answer.choices[0].message.content

            async def streamed(text: str) -> str:
                chunks = await sdk.chat.completions.create(model="demo", messages=said(text), max_tokens=8, stream=True)
                return text_of([chunk async for chunk in chunks])

            async def drawn() -> list[Any]:
                events = await sdk.images.generate(**DRAWING, stream=True, partial_images=1, extra_body={"steps": 3})
                return [event async for event in events]

            wholes = asyncio.gather(*map(whole, TEXTS))
            streams = asyncio.gather(*map(streamed, TEXTS))
            return await wholes, await streams, await drawn()

    wholes, streams, events = asyncio.run(scenario())
    assert wholes == streams == [directly(server, text) for text in TEXTS]
    assert isinstance(events[-1], ImageGenCompletedEvent)


def test_a_picture_is_drawn(sdk: openai.OpenAI) -> None:
    answer = sdk.images.generate(**DRAWING, n=2, extra_body={"steps": 3, "seed": 7})
    sizes = [Image.open(io.BytesIO(base64.b64decode(one.b64_json or ""))).size for one in answer.data or ()]
    assert sizes == [(64, 64)] * 2


def test_closing_a_stream_stops_the_work(server: Server, sdk: openai.OpenAI) -> None:
    left = 'proteus_requests_total{outcome="cancelled"}'
    before = metrics(server).get(left, 0)
    stream = sdk.chat.completions.create(
        model="demo", messages=said("Count."), max_tokens=900, stream=True, extra_body={"min_tokens": 900}
    )
    next(iter(stream))
    stream.close()
    assert until(server, lambda now: now.get(left, 0) > before and is_idle(now))


@pytest.mark.parametrize(
    ("fields", "error", "code"),
    [
        ({"model": "gpt-4o"}, openai.NotFoundError, "not_found"),
        ({"max_tokens": 10**6}, openai.BadRequestError, "prompt_too_long"),
        ({"tools": []}, openai.UnprocessableEntityError, "unsupported_field"),
        ({"extra_body": {"deadline_ms": 1, "n": 8}}, openai.InternalServerError, "deadline_exceeded"),
    ],
)
def test_a_refusal_is_the_sdks_own_exception(
    sdk: openai.OpenAI, fields: dict[str, Any], error: type[openai.APIStatusError], code: str
) -> None:
    with pytest.raises(error) as caught:
        sdk.chat.completions.create(**({"model": "demo", "messages": said("Who?")} | fields))
    assert caught.value.code == code
    assert "fix: " in caught.value.message


def test_a_timeout_is_the_clients_own(server: Server, sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.APITimeoutError):
        sdk.with_options(timeout=0.05).images.generate(**DRAWING, n=8, extra_body={"steps": 100})
    assert until(server, is_idle)
