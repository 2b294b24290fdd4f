"""The real OpenAI SDK, unmodified, against the gateway: sync and async, whole and streamed, and its exceptions."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.client.peer import LOGPROBS, Peer
from tests.gateway.running import in_front_of, running
from tests.gateway.test_chat import png

PICTURE_URL = "data:image/png;base64," + base64.b64encode(png(40, 30)).decode()


@pytest.fixture
def sdk(gateway_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway_url}/v1", api_key="pk-none", max_retries=0) as client:
        yield client


def asked(question: str) -> list[ChatCompletionMessageParam]:
    return [{"role": "user", "content": question}]


def test_a_completion_is_typed(sdk: openai.OpenAI) -> None:
    completion = sdk.chat.completions.create(model="demo", messages=asked("one two"))
    assert completion.choices[0].message.content == "one two "
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage is not None
    assert completion.usage.prompt_tokens_details is not None
    assert completion.usage.prompt_tokens_details.image_tokens == 36
    assert completion.model_extra is not None
    assert completion.model_extra["proteus"]["model"] == "demo"
    assert completion._request_id == completion.model_extra["proteus"]["request_id"]


def test_an_answer_goes_back_as_it_came(sdk: openai.OpenAI, peer: Peer) -> None:
    message = sdk.chat.completions.create(model="demo", messages=asked("one")).choices[0].message
    sdk.chat.completions.create(model="demo", messages=[*asked("one"), message, *asked("two")])  # type: ignore[list-item]
    assert [message["role"] for message in peer.documents[-1]["messages"]] == ["user", "assistant", "user"]


def test_all_sampling_fields_go_through(sdk: openai.OpenAI, peer: Peer) -> None:
    sdk.chat.completions.create(
        model="demo",
        messages=asked("two answers"),
        n=2,
        temperature=0.5,
        top_p=0.9,
        seed=7,
        stop=["end"],
        max_completion_tokens=5,
        frequency_penalty=0.5,
        presence_penalty=-0.5,
        logit_bias={"17": -100},
        logprobs=True,
        top_logprobs=2,
        service_tier="flex",
        store=False,
        modalities=["text"],
        response_format={"type": "text"},
        user="someone",
        extra_body={"top_k": 4, "min_p": 0.1, "min_tokens": 1, "repetition_penalty": 1.1},
    )
    document = peer.documents[-1]
    for ours in ("messages", "request_id", "tenant", "cache_scope"):
        del document[ours]
    assert document == {
        "n": 2,
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 7,
        "stop": ["end"],
        "max_tokens": 5,
        "frequency_penalty": 0.5,
        "presence_penalty": -0.5,
        "logit_bias": {"17": -100.0},
        "logprobs": True,
        "top_logprobs": 2,
        "latency_class": "batch",
        "top_k": 4,
        "min_p": 0.1,
        "min_tokens": 1,
        "repetition_penalty": 1.1,
    }


def test_a_picture_goes_through(sdk: openai.OpenAI, peer: Peer) -> None:
    content: Any = [
        {"type": "image_url", "image_url": {"url": PICTURE_URL, "detail": "high"}},
        {"type": "text", "text": "What is this?"},
    ]
    sdk.chat.completions.create(model="demo", messages=[{"role": "user", "content": content}])
    assert peer.requests[-1].raw_input_contents[1] == png(40, 30)


def test_a_stream_gives_text_logprobs_and_usage(sdk: openai.OpenAI) -> None:
    stream = sdk.chat.completions.create(
        model="demo",
        messages=asked("in pieces"),
        stream=True,
        logprobs=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == "\u00e9"
    told = [choice.logprobs for chunk in chunks for choice in chunk.choices if choice.logprobs is not None]
    assert [entry.model_dump() for one in told for entry in one.content or ()] == LOGPROBS * 3
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 3


def test_the_helper_for_streams_puts_a_completion_together(sdk: openai.OpenAI) -> None:
    with sdk.chat.completions.stream(model="demo", messages=asked("one two")) as stream:
        said = [event.delta for event in stream if event.type == "content.delta"]
        completion = stream.get_final_completion()
    assert "".join(said) == completion.choices[0].message.content == "one two "


@pytest.mark.parametrize(
    ("fields", "raised", "status", "code", "param"),
    [
        ({"temperature": -1}, openai.BadRequestError, 400, "invalid_request", "temperature"),
        ({"model": "gpt-5"}, openai.NotFoundError, 404, "not_found", "model"),
        ({"tools": []}, openai.UnprocessableEntityError, 422, "unsupported_field", "tools"),
        ({"messages": asked("refuse")}, openai.RateLimitError, 429, "queue_full", None),
        ({"messages": asked("end early")}, openai.InternalServerError, 503, "unavailable", None),
    ],
)
def test_a_refusal_is_the_sdks_own_exception(
    sdk: openai.OpenAI, fields: dict[str, Any], raised: type[openai.APIStatusError], status: int, code: str, param: Any
) -> None:
    with pytest.raises(raised) as caught:
        sdk.chat.completions.create(**{"model": "demo", "messages": asked("one"), **fields})
    error = caught.value
    assert (error.status_code, error.code, error.param) == (status, code, param)
    assert error.request_id is not None


def test_an_error_within_a_stream_is_raised_after_what_came(sdk: openai.OpenAI) -> None:
    said: list[str | None] = []
    stream = sdk.chat.completions.create(model="demo", messages=asked("break off"), stream=True)

    def read() -> None:
        for chunk in stream:
            said.append(chunk.choices[0].delta.content)

    with pytest.raises(openai.APIError) as caught:
        read()
    assert said == ["", "half"]
    assert (caught.value.code, caught.value.type) == ("internal", "server_error")


def test_a_server_that_is_not_there_is_a_503() -> None:
    with running(in_front_of("127.0.0.1:1")) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="x") as client:
        with pytest.raises(openai.InternalServerError) as caught:
            client.with_options(max_retries=0).chat.completions.create(model="demo", messages=asked("one"))
        assert (caught.value.status_code, caught.value.code) == (503, "unavailable")


async def _ask_many(url: str) -> list[str | None]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0) as client:

        async def streamed(question: str) -> str:
            stream = await client.chat.completions.create(model="demo", messages=asked(question), stream=True)
            return "".join([choice.delta.content or "" async for chunk in stream for choice in chunk.choices])

        async def whole(question: str) -> str | None:
            completion = await client.chat.completions.create(model="demo", messages=asked(question))
            return completion.choices[0].message.content

        questions = [f"question {number}" for number in range(10)]
        return list(await asyncio.gather(*map(streamed, questions), *map(whole, questions)))


def test_the_async_client_gets_each_answer_to_its_question(gateway_url: str) -> None:
    assert asyncio.run(_ask_many(gateway_url)) == [f"question {number} " for number in range(10)] * 2
