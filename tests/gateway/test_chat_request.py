"""Every field of OpenAI's chat requests is served, taken with its neutral value, or refused by its name."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from openai.types.chat import (
    ChatCompletionAssistantMessageParam,
    ChatCompletionContentPartImageParam,
    ChatCompletionContentPartTextParam,
    ChatCompletionDeveloperMessageParam,
    ChatCompletionStreamOptionsParam,
    ChatCompletionSystemMessageParam,
    ChatCompletionUserMessageParam,
)
from openai.types.chat.chat_completion_content_part_image_param import ImageURL
from openai.types.chat.chat_completion_message import ChatCompletionMessage
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming

from proteus.deployment import Deployment
from proteus.errors import InvalidRequest, ProteusError
from proteus.gateway.errors import UnsupportedField
from proteus.gateway.openai import chat_fields as known
from proteus.gateway.openai.chat_request import ChatWish, model_of, read_chat
from proteus.gateway.openai.fields import Fields
from tests.gateway.running import DEMO

LIMITS = Deployment.load(DEMO).text
QUESTION: dict[str, Any] = {"role": "user", "content": "Which?"}
PICTURE: dict[str, Any] = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def read(*messages: dict[str, Any], **fields: Any) -> ChatWish:
    return read_chat({"model": "demo", "messages": list(messages) or [QUESTION], **fields}, LIMITS)


def said_by_user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def refusal(*messages: dict[str, Any], **fields: Any) -> ProteusError:
    with pytest.raises((InvalidRequest, UnsupportedField)) as caught:
        read(*messages, **fields)
    return caught.value


@pytest.mark.parametrize(
    ("theirs", "ours", "table"),
    [
        (CompletionCreateParamsStreaming, known.OURS, known.CHAT),
        (ChatCompletionStreamOptionsParam, (), known.STREAM_OPTIONS),
        (ImageURL, (), known.IMAGE_URL),
        (ChatCompletionContentPartTextParam, (), known.PARTS["text"]),
        (ChatCompletionContentPartImageParam, (), known.PARTS["image_url"]),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_each_field_of_the_sdk_has_one_place(theirs: Any, ours: Any, table: Fields) -> None:
    places = [*table.served, *table.neutral, *table.refused]
    assert sorted(places) == sorted({*theirs.__annotations__, *ours})


@pytest.mark.parametrize(
    "theirs",
    [
        ChatCompletionSystemMessageParam,
        ChatCompletionDeveloperMessageParam,
        ChatCompletionUserMessageParam,
        ChatCompletionAssistantMessageParam,
    ],
)
def test_each_field_of_a_message_is_known(theirs: Any) -> None:
    assert theirs.__annotations__.keys() <= {*known.MESSAGE.served, *known.MESSAGE.neutral, *known.MESSAGE.refused}


@pytest.mark.parametrize("name", sorted(known.CHAT.refused))
def test_what_is_not_served_is_refused_by_name_and_null_is_left_out(name: str) -> None:
    error = refusal(**{name: "anything"})
    assert (error.code, error.param, error.http_status) == ("unsupported_field", name, 422)
    assert name in str(error)
    assert read(**{name: None}) == read()


@pytest.mark.parametrize(("name", "only"), sorted(known.CHAT.neutral.items()))
def test_what_changes_nothing_is_taken_with_that_value_alone(name: str, only: Any) -> None:
    assert read(**{name: only}) == read(**{name: None}) == read()
    for other in (0, True, "text", ["text", "audio"], {"type": "json_object"}):
        error = refusal(**{name: other})
        assert (error.code, error.param) == ("unsupported_field", name)
        assert error.limit is not None


@pytest.mark.parametrize("name", sorted(known.CHAT.served - {"model", "messages", "stream_options"}))
def test_every_field_that_is_served_may_be_null(name: str) -> None:
    assert read(**{name: None}) == read()


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"temperature": 1}, "temperature", 1.0),
        ({}, "temperature", 0.0),
        ({"top_p": 0.5}, "top_p", 0.5),
        ({"top_k": 3}, "top_k", 3),
        ({"min_p": 0.1}, "min_p", 0.1),
        ({"min_tokens": 2}, "min_tokens", 2),
        ({"n": 2}, "n", 2),
        ({"stop": "end"}, "stop", ["end"]),
        ({"stop": ["a", "b"]}, "stop", ["a", "b"]),
        ({"logprobs": True, "top_logprobs": 3}, "top_logprobs", 3),
        ({"seed": 2**53 + 1}, "seed", 2**53 + 1),
        ({"max_tokens": 7}, "max_tokens", 7),
        ({"max_completion_tokens": 7}, "max_tokens", 7),
        ({"max_tokens": 7, "max_completion_tokens": 7}, "max_tokens", 7),
        ({"frequency_penalty": -2}, "frequency_penalty", -2.0),
        ({"presence_penalty": 2}, "presence_penalty", 2.0),
        ({"repetition_penalty": 1.5}, "repetition_penalty", 1.5),
        ({"logit_bias": {"17": -100}}, "logit_bias", {"17": -100.0}),
        ({"deadline_ms": 500}, "deadline_ms", 500),
        ({"service_tier": "flex"}, "latency_class", "batch"),
        ({"service_tier": "default"}, "latency_class", "interactive"),
        ({"service_tier": "auto"}, "latency_class", "interactive"),
    ],
)
def test_a_field_is_the_doors(given: dict[str, Any], field: str, value: Any) -> None:
    assert getattr(read(**given).request, field) == value


@pytest.mark.parametrize(
    ("given", "wish"),
    [
        ({"stream": True}, {"stream": True, "include_usage": False}),
        ({"stream": True, "stream_options": {"include_usage": True}}, {"stream": True, "include_usage": True}),
        ({"stream": True, "stream_options": {"include_obfuscation": False}}, {"include_usage": False}),
        ({"service_tier": "auto"}, {"service_tier": "default"}),
        ({"service_tier": "flex"}, {"service_tier": "flex"}),
        ({}, {"service_tier": None, "stream": False, "user": None}),
        ({"user": "u"}, {"user": "u"}),
        ({"user": "u", "safety_identifier": "s" * 128}, {"user": "s" * 128}),
    ],
)
def test_how_it_is_to_be_told_is_kept_apart(given: dict[str, Any], wish: dict[str, Any]) -> None:
    found = read(**given)
    assert {name: getattr(found, name) for name in wish} == wish


@pytest.mark.parametrize(
    ("given", "param", "status"),
    [
        ({"temprature": 1}, "temprature", 400),
        ({"request_id": "mine"}, "request_id", 400),
        ({"cache_scope": "theirs"}, "cache_scope", 400),
        ({"tenant": "theirs"}, "tenant", 400),
        ({"latency_class": "batch"}, "latency_class", 400),
        ({"sent": {"clock": "a", "ns": 1}}, "sent", 400),
        ({"temperature": "hot"}, "temperature", 400),
        ({"temperature": True}, "temperature", 400),
        ({"n": 1.5}, "n", 400),
        ({"max_tokens": 7, "max_completion_tokens": 8}, "max_completion_tokens", 400),
        ({"stream": "yes"}, "stream", 400),
        ({"stream": 1}, "stream", 400),
        ({"stream_options": {"include_usage": True}}, "stream_options", 400),
        ({"stream": True, "stream_options": []}, "stream_options", 400),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage", 400),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x", 400),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation", 422),
        ({"service_tier": "priority"}, "service_tier", 422),
        ({"service_tier": "best"}, "service_tier", 400),
        ({"service_tier": ["flex"]}, "service_tier", 400),
        ({"user": "u" * 129}, "user", 400),
        ({"safety_identifier": 7}, "safety_identifier", 400),
        ({"messages": "hello"}, "messages", 400),
        ({"messages": None}, "messages", 400),
        ({"messages": [3]}, "messages[0]", 400),
        ({"messages": [QUESTION] * 65}, "messages", 400),
        ({"stop": 3}, "stop", 400),
        ({"logit_bias": {"a": 1}}, "logit_bias.a.[key]", 400),
    ],
)
def test_a_mistake_names_its_field(given: dict[str, Any], param: str, status: int) -> None:
    error = refusal(**given)
    assert (error.param, error.http_status) == (param, status)


@pytest.mark.parametrize(
    ("message", "param", "status"),
    [
        ({"role": "tool", "tool_call_id": "1", "content": "a"}, "messages[0].role", 422),
        ({"role": "function", "name": "f", "content": "a"}, "messages[0].role", 422),
        ({"role": "critic", "content": "a"}, "messages[0].role", 400),
        ({"role": ["user"], "content": "a"}, "messages[0].role", 400),
        ({"content": "a"}, "messages[0].role", 400),
        ({"role": "user"}, "messages[0].content", 400),
        ({"role": "user", "content": None}, "messages[0].content", 400),
        ({"role": "user", "name": "Ann", "content": "a"}, "messages[0].name", 422),
        ({"role": "user", "content": "a", "weight": 1}, "messages[0].weight", 400),
        ({"role": "assistant", "content": "a", "refusal": "no"}, "messages[0].refusal", 422),
        ({"role": "assistant", "content": "a", "tool_calls": []}, "messages[0].tool_calls", 422),
        ({"role": "assistant", "content": "a", "annotations": [{}]}, "messages[0].annotations", 422),
        (said_by_user({"type": "input_audio", "input_audio": {}}), "messages[0].content[0].type", 422),
        (said_by_user({"type": "text", "text": "a"}, {"type": "file"}), "messages[0].content[1].type", 422),
        (said_by_user({"type": "video_url", "video_url": {}}), "messages[0].content[0].type", 422),
        (said_by_user({"type": "input_image", "image_url": "x"}), "messages[0].content[0].type", 422),
        (said_by_user({"type": "image"}), "messages[0].content[0].type", 400),
        (said_by_user({"type": {}}), "messages[0].content[0].type", 400),
        (said_by_user({"text": "a"}), "messages[0].content[0]", 400),
        (said_by_user("text"), "messages[0].content[0]", 400),
        (said_by_user({"type": "text"}), "messages[0].content[0].text", 400),
        (said_by_user({"type": "text", "text": "a", "lang": "en"}), "messages[0].content[0].lang", 400),
        (
            said_by_user({"type": "text", "text": "a", "prompt_cache_breakpoint": {"mode": "explicit"}}),
            "messages[0].content[0].prompt_cache_breakpoint",
            422,
        ),
        (said_by_user({"type": "image_url", "image_url": "x"}), "messages[0].content[0].image_url", 400),
        (said_by_user({"type": "image_url"}), "messages[0].content[0].image_url", 400),
        (
            said_by_user({"type": "image_url", "image_url": {"url": "x", "detail": "original"}}),
            "messages[0].content[0].image_url.detail",
            422,
        ),
        (
            said_by_user({"type": "image_url", "image_url": {"url": "x", "detail": "huge"}}),
            "messages[0].content[0].image_url.detail",
            400,
        ),
        (
            said_by_user({"type": "image_url", "image_url": {"url": "x", "total_bytes": 9}}),
            "messages[0].content[0].image_url.total_bytes",
            400,
        ),
        (said_by_user(*[{"type": "text", "text": "a"}] * 257), "messages", 400),
    ],
)
def test_a_mistake_in_a_message_names_its_path(message: dict[str, Any], param: str, status: int) -> None:
    error = refusal(message)
    assert (error.param, error.http_status) == (param, status)


def test_developers_speak_as_the_system() -> None:
    request = read({"role": "developer", "content": "Be brief."}, QUESTION).request
    assert [message.role for message in request.messages] == ["system", "user"]


@pytest.mark.parametrize("exclude", [{"exclude_none": True}, {}], ids=["bare", "whole"])
def test_an_answer_of_the_sdk_is_taken_back(exclude: dict[str, bool]) -> None:
    said = ChatCompletionMessage(role="assistant", content="red", annotations=[]).model_dump(**exclude)  # type: ignore[arg-type]
    assert read(QUESTION, said, QUESTION).request.messages[1].content == "red"


def test_parts_keep_their_order_and_pictures_their_own_string() -> None:
    text = {"type": "text", "text": "and"}
    detailed = {"type": "image_url", "image_url": {"url": "https://example.com/a.png", "detail": "low"}}
    request = read(said_by_user(PICTURE, text, detailed)).request
    first, second, third = request.messages[0].parts()
    assert (first.type, second.type, third.type) == ("image_url", "text", "image_url")
    assert first.image_url.url is PICTURE["image_url"]["url"]  # type: ignore[union-attr]
    assert third.image_url.detail == "low"  # type: ignore[union-attr]
    assert "detail" not in first.image_url.model_fields_set  # type: ignore[union-attr]


def test_a_long_value_is_named_and_not_sent_back() -> None:
    for value in ("x" * 10**6, ["x"] * 10**5, {str(number): 1 for number in range(10**5)}):
        assert len(str(refusal(stream=value))) < 400


@pytest.mark.parametrize(
    ("document", "told"), [([], "object"), ({}, "missing"), ({"model": ""}, "model"), ({"model": 3}, "model")]
)
def test_a_document_names_its_model(document: Any, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        model_of(document)


@pytest.mark.parametrize(
    "fields",
    [
        {"stream": {"a": "\u00e9" * 1_000_000}},
        {"top_p": "\u00e9" * 1_000_000},
        {"top_p": [["\u00e9" * 1_000_000]]},
        {"seed": {"\u00e9" * 1_000_000: 1}},
        {
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "", "detail": "\x00" * 10**6}}]}
            ]
        },
    ],
)
def test_of_megabytes_in_a_wrong_place_only_what_is_told_is_copied(fields: dict[str, Any]) -> None:
    asked = {"model": "demo", "messages": [{"role": "user", "content": "x"}], **fields}
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest) as caught:
            read_chat(asked, LIMITS)
        assert tracemalloc.get_traced_memory()[1] < 500_000
    finally:
        tracemalloc.stop()
    assert len(str(caught.value)) < 1_000
