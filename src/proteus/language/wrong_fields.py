"""What is wrong with a JSON document of ours, as pydantic found it, in the words of our errors."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from proteus.errors import InvalidRequest

MAX_VALUE_CHARS = 60  # of a wrong value repeated in an error
MAX_MISTAKES = 100  # that are listed: to list a million stops every other answer for seconds


def wrong_field(error: ValidationError, document: str, known: Iterable[str]) -> InvalidRequest:
    """The first mistake in the document of that name, with its field, value and limit; `known` are its fields."""
    if error.error_count() > MAX_MISTAKES:
        return InvalidRequest(f"{document} has {error.error_count():,} mistakes", fix="correct it")
    first = error.errors(include_url=False)[0]
    name = ".".join([document, *map(str, first["loc"])])
    field = json.dumps(name, ensure_ascii=False)[1:-1][:MAX_VALUE_CHARS]  # a client's name may be anything
    if first["type"] == "json_invalid":
        return InvalidRequest(f"{document} is not JSON", fix="send one JSON object in UTF-8")
    if first["type"] == "extra_forbidden":
        return InvalidRequest(f"unknown field {field}", limit=f"known are {', '.join(known)}", fix="remove it")
    if first["loc"][-1:] == ("[key]",):
        field, limit = f"{document}.{first['loc'][0]}", "a token id in decimal digits"
        return InvalidRequest(f"{field} names {shortened(first['input'])}", limit=limit, fix="correct the id")
    return InvalidRequest(f"{field} = {shortened(first['input'])}", limit=first["msg"], fix="correct the value")


def shortened(value: Any) -> str:
    """As JSON; an error names what was sent, it does not send it back."""
    text = json.dumps(value, default=str)
    return text if len(text) <= MAX_VALUE_CHARS else text[: MAX_VALUE_CHARS - 1] + "…"
