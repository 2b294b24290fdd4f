"""The path of chat in the OpenAPI document: every field that is taken, and what is answered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from proteus.door.document import MAX_WHOLE
from proteus.door.request import MAX_TOP_LOGPROBS
from proteus.gateway.openai import chat_fields as known
from proteus.gateway.openai.openapi import OPEN, TEXT_OR_NULL, Schema, answers, body
from proteus.language.sampling import MAX_BIASES

WHOLE: Schema = {"type": "integer", "minimum": 0, "exclusiveMaximum": MAX_WHOLE}
POSITIVE: Schema = {**WHOLE, "minimum": 1}


def _object(properties: Mapping[str, Schema], required: Iterable[str] = ()) -> Schema:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _number(low: float, high: float) -> Schema:
    return {"type": "number", "minimum": low, "maximum": high}


def _messages() -> Schema:
    detail = {"enum": ["low", "auto", "high", None], "description": "the tier of the picture"}
    url = {"type": "string", "minLength": 1, "description": "a data URI, or a URL that [fetch] hosts allows"}
    text = _object({"type": {"const": "text"}, "text": {"type": "string"}}, ("type", "text"))
    picture = _object(
        {"type": {"const": "image_url"}, "image_url": _object({"url": url, "detail": detail}, ("url",))},
        ("type", "image_url"),
    )
    content = {
        "anyOf": [
            {"type": "string", "minLength": 1},
            {"type": "array", "minItems": 1, "items": {"anyOf": [text, picture]}},
        ]
    }
    nothing: Mapping[str, Schema] = {
        **{name: {"type": "null"} for name in sorted(known.MESSAGE.refused)},
        **{name: {"enum": [only, None]} for name, only in known.MESSAGE.neutral.items()},
    }
    message = _object({"role": {"enum": list(known.ROLES)}, "content": content, **nothing}, ("role", "content"))
    return {"type": "array", "minItems": 1, "items": message, "description": "the last is a user's"}


def _served() -> Mapping[str, Schema]:
    user: Schema = {"type": "string", "maxLength": known.MAX_USER_CHARS}
    stop: Schema = {"type": "string", "minLength": 1}
    return {
        "frequency_penalty": _number(-2, 2),
        "logit_bias": {
            "type": "object",
            "additionalProperties": _number(-100, 100),
            "maxProperties": MAX_BIASES,
            "description": "by token id",
        },
        "logprobs": {"type": "boolean"},
        "max_completion_tokens": POSITIVE,
        "max_tokens": {**POSITIVE, "description": "the same as max_completion_tokens"},
        "n": POSITIVE,
        "presence_penalty": _number(-2, 2),
        "safety_identifier": {**user, "description": "metered by its hash, as `user` is"},
        "seed": WHOLE,
        "service_tier": {"enum": list(known.LATENCY_CLASSES), "description": "`flex` can wait"},
        "stop": {"anyOf": [stop, {"type": "array", "items": stop}]},
        "stream": {"type": "boolean", "description": "server-sent events"},
        "stream_options": _object(
            {"include_usage": {"type": ["boolean", "null"]}, "include_obfuscation": {"enum": [False, None]}}
        ),
        "temperature": {"type": "number", "minimum": 0, "description": "0, also when left out, is greedy"},
        "top_logprobs": {"type": "integer", "minimum": 0, "maximum": MAX_TOP_LOGPROBS},
        "top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        "user": user,
        "top_k": {**WHOLE, "description": "ours; 0 is off"},
        "min_p": {**_number(0, 1), "description": "ours; 0 is off"},
        "min_tokens": {**WHOLE, "description": "ours; before these the answer does not end by itself"},
        "repetition_penalty": {"type": "number", "exclusiveMinimum": 0, "description": "ours; 1 is off"},
        "deadline_ms": {**POSITIVE, "description": "ours; to be started"},
    }


def request_schema() -> Schema:
    """What is taken; what is not among it is refused by name."""
    optional = {name: _or_null(schema) for name, schema in _served().items()}
    neutral = {name: {"enum": [only, None]} for name, only in known.CHAT.neutral.items()}
    nothing: Mapping[str, Schema] = {name: {"type": "null"} for name in sorted(known.CHAT.refused)}
    model: Schema = {"type": "string", "minLength": 1, "description": "GET /v1/models lists them; or `auto`"}
    return _object({"model": model, "messages": _messages(), **optional, **neutral, **nothing}, ("model", "messages"))


def _logprobs() -> Schema:
    token: Mapping[str, Schema] = {
        "token": {"type": "string"},
        "logprob": {"type": "number"},
        "bytes": {"type": "array", "items": {"type": "integer"}},
    }
    likely = {"type": "array", "items": _object(token, token)}
    content = {"type": "array", "items": _object({**token, "top_logprobs": likely}, (*token, "top_logprobs"))}
    return _or_null(_object({"content": content, "refusal": {"type": "null"}}, ("content", "refusal")))


def _usage() -> Schema:
    count: Schema = {"type": "integer", "minimum": 0}
    details = dict.fromkeys(("cached_tokens", "text_tokens", "image_tokens"), count)
    counts = dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), count)
    return _object({**counts, "prompt_tokens_details": _object(details, details)}, (*counts, "prompt_tokens_details"))


def completion_schema() -> Schema:
    """The whole answer; chunks of a stream are OpenAI's."""
    message: Mapping[str, Schema] = {
        "role": {"const": "assistant"},
        "content": {"type": "string"},
        "refusal": {"type": "null"},
        "annotations": {"type": "array", "maxItems": 0},
    }
    choice: Mapping[str, Schema] = {
        "index": {"type": "integer", "minimum": 0},
        "message": _object(message, message),
        "logprobs": _logprobs(),
        "finish_reason": {"enum": ["stop", "length"]},
    }
    properties: Mapping[str, Schema] = {
        "id": {"type": "string"},
        "object": {"const": "chat.completion"},
        "created": {"type": "integer"},
        "model": {"type": "string"},
        "system_fingerprint": TEXT_OR_NULL,
        "service_tier": {"enum": ["default", "flex"]},
        "choices": {"type": "array", "minItems": 1, "items": _object(choice, choice)},
        "usage": _usage(),
        "proteus": {**OPEN, "description": "ours; docs/gateway.md tells its fields"},
    }
    return _object(properties, (name for name in properties if name != "service_tier"))


def path() -> dict[str, Any]:
    """Keywords of the route."""
    return {
        "summary": "Answer a conversation with pictures",
        "responses": answers("A completion, or a stream of chunks.", completion_schema(), events=True),
        "openapi_extra": body(request_schema()),
    }
