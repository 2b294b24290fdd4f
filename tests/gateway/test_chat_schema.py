"""The OpenAPI document says of chat what is true of it."""

from __future__ import annotations

from typing import Any

import httpx
import jsonschema
import pytest

from proteus.gateway.errors import STATUS_OF
from proteus.gateway.openai import chat_fields as known
from proteus.gateway.openai.chat_schema import completion_schema, request_schema
from tests.gateway.test_chat import PATH, asked, picture, png

TAKES = jsonschema.Draft202012Validator(request_schema())
GIVES = jsonschema.Draft202012Validator(completion_schema())


def test_every_field_stands_in_the_schema_of_the_request() -> None:
    properties = request_schema()["properties"]
    assert properties.keys() == {*known.CHAT.served, *known.CHAT.neutral, *known.CHAT.refused}
    for name in known.CHAT.refused:
        assert properties[name] == {"type": "null"}


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2, "logprobs": True, "top_logprobs": 1, "messages": asked("two answers")["messages"]},
        {"service_tier": "flex", "stop": ["a"], "seed": 3, "metadata": {}, "tools": None, "user": None},
        {"messages": asked([picture(png(40, 30), detail="low"), {"type": "text", "text": "?"}])["messages"]},
    ],
)
def test_what_is_taken_and_given_is_of_the_schemas(http: httpx.Client, fields: dict[str, Any]) -> None:
    document = asked("one") | fields
    TAKES.validate(document)
    answer = http.post(PATH, json=document)
    assert answer.status_code == 200
    GIVES.validate(answer.json())


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": []},
        {"store": True},
        {"unknown": 1},
        {"temperature": -1},
        {"n": 0},
        {"model": ""},
        {"messages": []},
        {"messages": [{"role": "tool", "content": "a"}]},
        {"stream_options": {"include_obfuscation": True}},
        {"service_tier": "priority"},
    ],
)
def test_what_the_schema_refuses_is_refused(http: httpx.Client, fields: dict[str, Any]) -> None:
    document = asked("one") | fields
    assert not TAKES.is_valid(document)
    assert http.post(PATH, json=document).status_code in (400, 422)


def test_every_status_that_can_come_is_documented(http: httpx.Client) -> None:
    operation = http.get("/openapi.json").json()["paths"][PATH]["post"]
    assert {str(status) for status in STATUS_OF.values()} <= operation["responses"].keys()
    refused = http.post(PATH, json={}).json()
    jsonschema.validate(refused, operation["responses"]["400"]["content"]["application/json"]["schema"])
