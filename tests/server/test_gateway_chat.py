"""The OpenAI SDK through the gateway says what our own client says straight to the server: text, tokens, usage."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion

from proteus.client import Answer, Client
from proteus.launcher import Server
from tests.gateway.running import in_front_of, running
from tests.preprocess.pictures import encode, noise
from tests.server.test_ask import CHART as CHART_FILE
from tests.server.test_ask import DESCRIBE, QUESTION, ROOT

CHART = CHART_FILE.read_bytes()
PAGE = (ROOT / "docs" / "gateway.md").read_text(encoding="utf-8")
SECOND = encode(noise(60, 90), "PNG")
TEXT = "What colour is the circle?"
Parts = list[Any]  # texts and the bytes of pictures


@pytest.fixture(scope="module")
def url(server: Server) -> Iterator[str]:
    with running(in_front_of(server.ports.grpc_url)) as listening:
        yield listening


@pytest.fixture(scope="module")
def sdk(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="pk-none", max_retries=0) as client:
        yield client


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.ports.grpc_url) as made:
        yield made


def directly(client: Client, parts: Parts, **options: Any) -> Answer:
    content = [{"type": "text", "text": part} if isinstance(part, str) else {"type": "image"} for part in parts]
    pictures = [part for part in parts if isinstance(part, bytes)]
    return client.chat([{"role": "user", "content": content}], pictures, **options)


def messages(parts: Parts) -> Any:
    content = [
        {"type": "text", "text": part}
        if isinstance(part, str)
        else {
            "type": "image_url",
            "image_url": {"url": "data:image/png;base64," + base64.b64encode(part).decode()},
        }
        for part in parts
    ]
    return [{"role": "user", "content": content}]


def whole(sdk: openai.OpenAI, parts: Parts, **fields: Any) -> ChatCompletion:
    completion = sdk.chat.completions.create(model="demo", messages=messages(parts), **fields)
    assert isinstance(completion, ChatCompletion)
    return completion


def check_equal(completion: ChatCompletion, answer: Answer) -> None:
    """Text, reason, logprobs and usage; cached tokens apart, of which the second who asks has more."""
    assert len(completion.choices) == len(answer.choices)
    for said, choice in zip(completion.choices, answer.choices, strict=True):
        assert (said.message.content, said.finish_reason) == (choice.text, choice.finish_reason)
        entries = (said.logprobs and said.logprobs.content) or []
        assert [(entry.token, entry.bytes) for entry in entries] == [
            (entry.token, list(entry.bytes)) for entry in choice.logprobs
        ]
        assert [entry.logprob for entry in entries] == pytest.approx(
            [entry.logprob for entry in choice.logprobs], abs=1e-4
        )
        assert [[likely.token for likely in entry.top_logprobs] for entry in entries] == [
            [likely.token for likely in entry.top_logprobs] for entry in choice.logprobs
        ]
    usage = completion.usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert usage.completion_tokens == answer.usage.output_tokens
    assert usage.prompt_tokens == answer.usage.text_tokens + answer.usage.visual_tokens
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details.image_tokens == answer.usage.visual_tokens
    assert usage.prompt_tokens_details.text_tokens == answer.usage.text_tokens


@pytest.mark.parametrize(
    "parts",
    [
        [TEXT],
        [CHART, QUESTION],
        [QUESTION, CHART],
        ["Look: ", CHART, QUESTION],
        [CHART, "or", SECOND, DESCRIBE],
        [SECOND, "or", CHART, DESCRIBE],
    ],
    ids=["text", "picture first", "picture last", "picture between", "two pictures", "two pictures turned round"],
)
def test_an_answer_is_the_direct_clients(sdk: openai.OpenAI, client: Client, parts: Parts) -> None:
    fields: dict[str, Any] = {"max_tokens": 12, "logprobs": True, "top_logprobs": 2}
    check_equal(whole(sdk, parts, **fields), directly(client, parts, **fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2, "temperature": 2.0, "seed": 11, "top_p": 0.95},
        {"stop": ["e"]},
        {"logit_bias": {"300": 100}},
        {"frequency_penalty": 1.5, "presence_penalty": 0.5},
    ],
    ids=lambda fields: ", ".join(fields),
)
def test_each_field_does_what_it_does_directly(sdk: openai.OpenAI, client: Client, fields: dict[str, Any]) -> None:
    parts = [CHART, DESCRIBE]
    check_equal(whole(sdk, parts, max_completion_tokens=10, **fields), directly(client, parts, max_tokens=10, **fields))


def test_a_stream_says_what_the_whole_says(sdk: openai.OpenAI, client: Client) -> None:
    stream = sdk.chat.completions.create(
        model="demo",
        messages=messages([CHART, DESCRIBE]),
        max_tokens=12,
        n=2,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks, texts, reasons = list(stream), ["", ""], ["", ""]
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        texts[choice.index] += choice.delta.content or ""
        reasons[choice.index] += choice.finish_reason or ""
    answer = directly(client, [CHART, DESCRIBE], max_tokens=12, n=2)
    assert list(zip(texts, reasons, strict=True)) == [(one.text, one.finish_reason) for one in answer.choices]
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.prompt_tokens == answer.usage.text_tokens + answer.usage.visual_tokens
    assert usage.completion_tokens == answer.usage.output_tokens


def test_what_was_planned_is_what_was_used_and_the_stages_add_up(sdk: openai.OpenAI) -> None:
    told = (whole(sdk, [CHART, QUESTION], max_tokens=4).model_extra or {})["proteus"]
    for name in ("text_tokens", "visual_tokens"):
        assert told["resources"][name] == told["usage"][name]
    assert told["resources"]["output_tokens"] == 4 >= told["usage"]["output_tokens"]
    stages_ms = told["stages_ms"]
    assert {"receive", "plan", "ingress", "prefill", "decode", "gateway"} <= stages_ms.keys()
    assert stages_ms.pop("total") == pytest.approx(sum(stages_ms.values()), abs=0.1)
    assert told["media"][0]["visual_tokens"] == told["usage"]["visual_tokens"]
    assert told["price"]["amount"] > 0


def test_a_repeated_question_tells_what_was_cached(sdk: openai.OpenAI) -> None:
    first, again = (whole(sdk, [SECOND, QUESTION], max_tokens=4) for _ in range(2))
    assert again.usage is not None
    assert again.usage.prompt_tokens_details is not None
    told = (again.model_extra or {})["proteus"]
    assert again.usage.prompt_tokens_details.cached_tokens == told["usage"]["cached_tokens"] > 0
    assert told["pictures"] == ["cached"]
    assert first.choices[0].message.content == again.choices[0].message.content
    assert first.system_fingerprint == again.system_fingerprint


@pytest.mark.parametrize(
    ("parts", "fields", "status", "code"),
    [
        ([b"no picture at all, though long enough to be one", QUESTION], {}, 400, "invalid_picture"),
        ([TEXT], {"max_tokens": 10**6}, 400, "prompt_too_long"),
        ([TEXT], {"n": 99}, 400, "invalid_request"),
        ([CHART] * 40, {}, 413, "media_too_large"),
        ([TEXT], {"logit_bias": {"999999": 1}}, 400, "invalid_request"),
    ],
)
def test_a_refusal_has_its_status(
    sdk: openai.OpenAI, parts: Parts, fields: dict[str, Any], status: int, code: str
) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        whole(sdk, parts, **fields)
    assert (caught.value.status_code, caught.value.code) == (status, code)


def _run_of_page(kind: str, url: str, *command: str) -> str:
    """What the first block of this kind that names the gateway's address prints."""
    blocks = re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (block, *_) = (block for block in blocks if "http://127.0.0.1:8090" in block)
    words = [*command, block.replace("http://127.0.0.1:8090", url)]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout


def test_the_pages_curl_is_answered(url: str, client: Client) -> None:
    told = json.loads(_run_of_page("sh", url, "bash", "-c"))
    answer = directly(client, [CHART, QUESTION], max_tokens=16)
    assert told["choices"][0]["message"]["content"] == answer.text


def test_the_pages_python_is_answered(url: str, client: Client) -> None:
    assert directly(client, [TEXT], max_tokens=16).text in _run_of_page("python", url, sys.executable, "-c")
