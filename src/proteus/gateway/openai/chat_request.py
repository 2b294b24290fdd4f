"""A chat request in OpenAI's words to the door's: every field of it is served, neutral or refused by name.

The JSON is read already, once; a picture's base64 stays the string that it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from proteus.door.request import ChatRequest
from proteus.errors import InvalidRequest
from proteus.gateway.errors import UnsupportedField
from proteus.gateway.openai import chat_fields as known
from proteus.gateway.openai.fields import written, wrong
from proteus.limits import TextLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatWish:
    """What is asked of the model, and how it is to be told."""

    request: ChatRequest
    stream: bool = False
    include_usage: bool = False  # in a stream; otherwise it is always there
    service_tier: Literal["default", "flex"] | None = None  # as it is told; None: none was asked for
    user: str | None = None  # of the tenant; known to the metering log by its hash


def model_of(document: object) -> str:
    """The model that a document names, whatever it asks for. Raises InvalidRequest."""
    if not isinstance(document, dict):
        raise InvalidRequest("the body is not a JSON object", fix="send one JSON object")
    model = document.get("model")
    if model is None:
        raise wrong("model is missing", "model", fix="name one; GET /v1/models lists them")
    if not isinstance(model, str) or not model:
        raise wrong(f"model = {written(model)}", "model", limit="a name", fix="GET /v1/models lists them")
    return model


def read_chat(document: Mapping[str, Any], limits: TextLimits) -> ChatWish:
    """Raises InvalidRequest or UnsupportedField, naming the field."""
    asked = known.CHAT.read(document)
    asked.pop("model", None)
    stream = _flag(asked.pop("stream", False), "stream")
    include_usage = _include_usage(asked.pop("stream_options", None), stream=stream)
    tier = asked.pop("service_tier", None)
    user = _user(asked)
    fields = _renamed(asked) | ({} if tier is None else {"latency_class": _latency_class(tier)})
    if isinstance(fields.get("messages"), list):
        fields["messages"] = _messages(fields["messages"], limits)
    return ChatWish(
        request=ChatRequest.of(fields, limits),
        stream=stream,
        include_usage=include_usage,
        service_tier=None if tier is None else "flex" if tier == "flex" else "default",
        user=user,
    )


def _renamed(asked: dict[str, Any]) -> dict[str, Any]:
    if "max_completion_tokens" in asked:
        most = asked.pop("max_completion_tokens")
        if asked.setdefault("max_tokens", most) != most:
            raise wrong(
                f"max_tokens = {written(asked['max_tokens'])} and max_completion_tokens = {written(most)}",
                "max_completion_tokens",
                limit="they mean the same",
                fix="send one of them",
            )
    if isinstance(asked.get("stop"), str):
        asked["stop"] = [asked["stop"]]
    return asked


def _flag(value: object, path: str) -> bool:
    if not isinstance(value, bool):
        raise wrong(f"{path} = {written(value)}", path, limit="true or false", fix="correct the value")
    return value


def _include_usage(options: object, *, stream: bool) -> bool:
    if options is None:
        return False
    if not isinstance(options, dict):
        raise wrong(f"stream_options = {written(options)}", "stream_options", limit="an object", fix="correct it")
    include = _flag(
        known.STREAM_OPTIONS.read(options, "stream_options").get("include_usage", False),
        "stream_options.include_usage",
    )
    if not stream:
        raise wrong(
            "stream_options without a stream", "stream_options", limit='only with "stream": true', fix="leave it out"
        )
    return include


def _latency_class(tier: object) -> str:
    if not isinstance(tier, str) or tier not in known.LATENCY_CLASSES:
        _refuse_value("service_tier", tier, known.LATENCY_CLASSES, known.REFUSED_TIERS)
    return known.LATENCY_CLASSES[tier]


def _user(asked: dict[str, Any]) -> str | None:
    """`safety_identifier`, else `user`, which it replaces."""
    names = [name for name in ("safety_identifier", "user") if name in asked]
    values = [asked.pop(name) for name in names]
    for name, value in zip(names, values, strict=True):
        if not isinstance(value, str) or len(value) > known.MAX_USER_CHARS:
            limit = f"text of at most {known.MAX_USER_CHARS} characters"
            raise wrong(f"{name} = {written(value)}", name, limit=limit, fix="send a hash of it")
    return values[0] if values else None


def _messages(messages: list[Any], limits: TextLimits) -> list[Any]:
    """What is no message at all is left for the door to name. They are counted before any is looked at."""
    num_parts = sum(_num_parts(message) for message in messages) if len(messages) <= limits.max_messages else 0
    for what, key, count in (("messages", "max_messages", len(messages)), ("parts", "max_parts", num_parts)):
        if count > (most := getattr(limits, key)):
            raise wrong(f"{count:,} {what}", "messages", limit=f"[text] {key} = {most:,}", fix="send less")
    return [
        _message(message, f"messages[{index}]") if isinstance(message, dict) else message
        for index, message in enumerate(messages)
    ]


def _num_parts(message: object) -> int:
    content = message.get("content") if isinstance(message, dict) else None
    return len(content) if isinstance(content, list) else 1


def _message(message: dict[str, Any], at: str) -> dict[str, Any]:
    role = message.get("role")
    if isinstance(role, str) and role in known.REFUSED_ROLES:  # before its fields, which no other role has
        _refuse_value(f"{at}.role", role, known.ROLES, known.REFUSED_ROLES)
    read = known.MESSAGE.read(message, at)
    if "role" in read:
        if not isinstance(role, str) or role not in known.ROLES:
            _refuse_value(f"{at}.role", role, known.ROLES)
        read["role"] = known.ROLES[role]
    if isinstance(read.get("content"), list):
        read["content"] = [_part(part, f"{at}.content[{index}]") for index, part in enumerate(read["content"])]
    return read


def _part(part: object, at: str) -> object:
    if not isinstance(part, dict) or part.get("type") is None:
        return part
    kind = part["type"]
    if not isinstance(kind, str) or kind not in known.PARTS:
        _refuse_value(f"{at}.type", kind, known.PARTS, known.REFUSED_PARTS)
    read = known.PARTS[kind].read(part, at)
    if isinstance(read.get("image_url"), dict):
        read["image_url"] = _image_url(read["image_url"], f"{at}.image_url")
    return read


def _image_url(image_url: dict[str, Any], at: str) -> dict[str, Any]:
    read = known.IMAGE_URL.read(image_url, at)
    if isinstance(detail := read.get("detail"), str) and detail in known.REFUSED_DETAILS:
        _refuse_value(f"{at}.detail", detail, ("low", "auto", "high"), known.REFUSED_DETAILS)
    return read


def _refuse_value(
    path: str, value: object, served: Mapping[str, object] | tuple[str, ...], refused: frozenset[str] = frozenset()
) -> NoReturn:
    """A value that only OpenAI serves, or that nobody does."""
    limit = f"served are {', '.join(served)}"
    if isinstance(value, str) and value in refused:
        what = f"{path} = {written(value)} is not supported"
        raise UnsupportedField(what, param=path, limit=limit, fix="use one of these")
    raise wrong(f"{path} = {written(value)}", path, limit=limit, fix="correct the value")
