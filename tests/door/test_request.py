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


def test_error_is_no_echo_of_a_long_value() -> None:
    long = "9" * 10_000
    for fields in ({"max_tokens": long}, {long: 1}, {"messages": user({"type": long})}):
        with pytest.raises(InvalidRequest) as caught:
            parse(**fields)
        assert len(str(caught.value)) < 500
