from __future__ import annotations

import json
from typing import Any

import pytest

from proteus.door.request import ChatRequest, PictureContent, TextContent
from proteus.errors import InvalidRequest
from proteus.limits import TextLimits

LIMITS = TextLimits(
    max_request_bytes=200_000,
    max_messages=4,
    max_parts=6,
    max_text_bytes=1_000,
    default_max_tokens=16,
    max_stop_strings=2,
    max_stop_bytes=8,
    max_choices=3,
)
USER = {"role": "user", "content": "Hello"}


def parse(**fields: Any) -> ChatRequest:
    return ChatRequest.parse(json.dumps({"messages": [USER], **fields}).encode(), LIMITS)


def user(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


def test_only_messages_must_be_there() -> None:
    request = parse()
    assert request.messages[0].parts() == [TextContent(type="text", text="Hello")]
    assert (request.max_tokens, request.temperature, request.top_p, request.top_k) == (None, 0.0, 1.0, 0)
    assert (request.seed, request.stop, request.cache_scope) == (None, [], "")


def test_parts_keep_their_order() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "image", "data": "AA=="}]
    assert parse(messages=user(*parts)).messages[0].parts() == [
        TextContent(type="text", text="a"),
        PictureContent(type="image"),
        PictureContent(type="image", data="AA=="),
    ]


def test_texts_and_pictures_are_those_of_the_parts() -> None:
    url = {"type": "image_url", "image_url": {"url": "data:,"}}
    (plain,) = parse().messages
    (mixed,) = parse(messages=user({"type": "text", "text": "a"}, url, {"type": "text", "text": "b"})).messages
    assert (plain.texts(), plain.pictures()) == (["Hello"], [])
    assert (mixed.texts(), mixed.pictures()) == (["a", "b"], mixed.parts()[1:2])


def test_no_two_requests_share_what_can_be_changed() -> None:
    first, second = parse(), parse()
    assert first.stop is not second.stop
    assert first.logit_bias is not second.logit_bias


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"colour": "red"}, ["unknown field colour", "remove the field"]),
        ({"messages": []}, ["messages = []", "at least 1 item"]),
        ({"messages": None}, ["messages = null"]),
        ({"max_tokens": 0}, ["max_tokens = 0", "greater than or equal to 1"]),
        ({"max_tokens": "16"}, ['max_tokens = "16"', "valid integer"]),
        ({"max_tokens": True}, ["max_tokens = true"]),
        ({"max_tokens": 1.5}, ["max_tokens = 1.5"]),
        ({"temperature": -0.1}, ["temperature = -0.1"]),
        ({"top_p": 0}, ["top_p = 0", "greater than 0"]),
        ({"top_p": 1.1}, ["top_p = 1.1"]),
        ({"top_k": -1}, ["top_k = -1"]),
        ({"seed": -1}, ["seed = -1"]),
        ({"seed": 2**63}, ["seed = 9223372036854775808"]),
        ({"stop": "x"}, ['stop = "x"', "valid array"]),
        ({"stop": [""]}, ['stop[0] = ""']),
        ({"stop": ["a", "b", "c"]}, ["3 stop strings", "max_stop_strings = 2"]),
        ({"stop": ["ninebytes"]}, ["9 bytes in a stop string", "max_stop_bytes = 8"]),
        ({"sent": 7}, ["sent = 7"]),
        ({"sent": {}}, ["sent.clock is missing", "1 more"]),
        ({"sent": {"clock": "a", "ns": 1.5}}, ["sent.ns = 1.5", "valid integer"]),
        ({"sent": {"clock": "a", "ns": -1}}, ["sent.ns = -1", "greater than or equal to 0"]),
        ({"sent": {"clock": "a", "ns": 2**63}}, ["sent.ns = 9223372036854775808"]),
        ({"sent": {"clock": "a" * 65, "ns": 1}}, ["sent.clock", "at most 64 characters"]),
        ({"sent": {"clock": "a", "ns": 1, "s": 1}}, ["unknown field sent.s"]),
        ({"n": 0}, ["n = 0", "greater than or equal to 1"]),
        ({"n": 4}, ["n = 4", "max_choices = 3", "lower n"]),
        ({"n": 2**63}, ["n = 9223372036854775808"]),
        ({"min_tokens": -1}, ["min_tokens = -1"]),
        ({"min_p": 1.1}, ["min_p = 1.1", "less than or equal to 1"]),
        ({"frequency_penalty": 2.1}, ["frequency_penalty = 2.1"]),
        ({"presence_penalty": -2.1}, ["presence_penalty = -2.1"]),
        ({"repetition_penalty": 0}, ["repetition_penalty = 0", "greater than 0"]),
        ({"logit_bias": [1]}, ["logit_bias = [1]", "object"]),
        ({"logit_bias": {"5": 100.5}}, ["logit_bias.5 = 100.5", "less than or equal to 100"]),
        ({"logit_bias": {"5": True}}, ["logit_bias.5 = true"]),
        ({"logit_bias": {"five": 1}}, ['logit_bias names "five"', "a token id in decimal digits"]),
        ({"logit_bias": {"[key]": 1}}, ['logit_bias names "[key]"']),
        ({"[key]": 1}, ["unknown field [key]"]),
        ({"logit_bias": {"05": 1}}, ['logit_bias names "05"']),
        ({"logit_bias": {"-1": 1}}, ['logit_bias names "-1"']),
        ({"logit_bias": {"1_0": 1}}, ['logit_bias names "1_0"']),
        ({"logit_bias": {"5\n": 1}}, ['logit_bias names "5\\n"']),
        (
            {"logit_bias": {str(number): 1 for number in range(1025)}},
            ["names 1,025 ids", "limit: 1,024 ids"],
        ),
        ({"logprobs": 1}, ["logprobs = 1", "valid boolean"]),
        ({"top_logprobs": 21, "logprobs": True}, ["top_logprobs = 21", "less than or equal to 20"]),
        ({"top_logprobs": 1}, ["top_logprobs = 1", "0 without logprobs"]),
        ({"request_id": ""}, ['request_id = ""', "at least 1 character"]),
        ({"request_id": "x" * 129}, ["request_id = ", "at most 128 characters"]),
        ({"request_id": "a\u2028b"}, ["request_id", "limit: every character must be printable"]),
        ({"request_id": 7}, ["request_id = 7"]),
        ({"stop": {"request_id": "x"}}, ["stop = ", "valid array"]),
        ({"messages": [{"role": "root", "content": "x"}]}, ['messages[0].role = "root"', "'user'"]),
        ({"messages": [{"role": "user"}]}, ["messages[0].content is missing"]),
        ({"messages": [{"role": "user", "content": 5}]}, ["messages[0].content = 5"]),
        ({"messages": [{"role": "user", "content": ""}]}, ["messages[0].content is empty"]),
        ({"messages": [{"role": "user", "content": []}]}, ["messages[0].content is empty"]),
        (
            {"messages": user({"type": "smell", "text": "x"})},
            ['messages[0].content[0].type = "smell"', "known are text, image, image_url"],
        ),
        ({"messages": user({"type": ["text"]})}, ['messages[0].content[0].type = ["text"]', "known are text"]),
        ({"messages": user({"text": "x"})}, ["messages[0].content[0].type is missing", "known are text"]),
        ({"messages": user(None)}, ["messages[0].content[0] = null", "object"]),
        ({"messages": user(*[{"type": "text", "text": ""}] * 6, {"type": "image"})}, ["7 parts", "max_parts = 6"]),
        ({"messages": user({"type": "smell"}, {"type": "smell"})}, ['content[0].type = "smell";']),
        ({"deadline_ms": 10**400}, ["deadline_ms = 1000", "less than 9223372036854775808"]),
        ({"max_tokens": 2**63}, ["max_tokens = 9223372036854775808"]),
        ({"top_k": 2**63}, ["top_k = 9223372036854775808"]),
        ({"messages": user({"type": "text"})}, ["messages[0].content[0].text is missing"]),
        ({"messages": user({"type": "image", "url": "x"})}, ["unknown field messages[0].content[0].url"]),
        ({"messages": user({"type": "text", "text": 7})}, ["messages[0].content[0].text = 7"]),
        ({"messages": [USER] * 5}, ["5 messages", "max_messages = 4"]),
        ({"messages": [{"role": "user", "content": "é" * 501}]}, ["1,002 bytes of text", "max_text_bytes = 1,000"]),
        ({"messages": [USER, {"role": "assistant", "content": "Hi"}]}, ["last message is the assistant's"]),
        (
            {"messages": [{"role": "system", "content": [{"type": "image"}]}, USER]},
            ["messages[0] is the system's and holds a picture"],
        ),
        ({"colour": 1, "max_tokens": 0}, ["and 1 more"]),
    ],
)
def test_mistake_is_named_with_field_value_and_fix(fields: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(**fields)
    for word in [*words, "fix: "]:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (b"", ["not JSON"]),
        (b"What is this?", ["not JSON"]),
        (b"[]", ["the request = []"]),
        (b'"text"', ["the request ="]),
        (b"[" * 100_000, ["not JSON"]),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', ["not JSON"]),
        (b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}', ["temperature"]),
        (b"\xff\xfe", ["not UTF-8 (byte 0)"]),
        (b'{"messages": "\xe9"}', ["not UTF-8 (byte 14)"]),
        (b" " * 200_001, ["200,001 bytes", "max_request_bytes = 200,000"]),
    ],
)
def test_what_is_no_document_is_said_so(document: bytes, words: list[str]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        ChatRequest.parse(document, LIMITS)
    for word in [*words, "fix: "]:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "fields",
    [
        {f"x{number}": 1 for number in range(5_000)},
        {"logit_bias": {f"x{number}": "y" for number in range(5_000)}},
        {"messages": [{"role": "user", "content": "x", **{f"x{number}": 1 for number in range(5_000)}}]},
    ],
    ids=["fields", "ids", "fields of a message"],
)
def test_a_document_of_many_mistakes_is_refused_without_listing_them(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=r"the request document has (5|10),000 mistakes; fix: "):
        parse(**fields)


def test_every_field_of_sampling_is_taken() -> None:
    request = parse(n=3, logit_bias={"5": 1, "0": -100.0}, logprobs=True, top_logprobs=20, request_id="ä b", min_p=0.5)
    assert (request.n, request.logit_bias, request.request_id) == (3, {"5": 1.0, "0": -100.0}, "ä b")


def test_owner_is_the_tenant_or_else_the_cache_scope() -> None:
    owners = [parse(**fields).owner for fields in ({}, {"cache_scope": "s"}, {"tenant": "t", "cache_scope": "s"})]
    assert owners == ["", "s", "t"]


def test_error_is_no_echo_of_a_long_value() -> None:
    long = "9" * 10_000
    for fields in ({"max_tokens": long}, {long: 1}, {"messages": user({"type": long})}):
        with pytest.raises(InvalidRequest) as caught:
            parse(**fields)
        assert len(str(caught.value)) < 500
