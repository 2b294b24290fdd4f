"""What the paths share in the OpenAPI document: the form of every refusal, and of the object `proteus`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proteus.gateway.errors import STATUS_OF, TYPES

Schema = dict[str, Any]
OPEN: Schema = {"type": "object", "additionalProperties": True}
TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
REASONS: Mapping[int, str] = {
    400: "A field, a part or a byte that cannot be used.",
    401: "No API key, or none that is known.",
    403: "The tenant may not have this model, or the host or origin is not the gateway's.",
    404: "No such model or path.",
    405: "The path has other methods.",
    408: "The body did not come in time.",
    413: "Over a limit of bytes, pixels or resources.",
    415: "The body is not JSON.",
    422: "A field of OpenAI's that is not served, or content that the moderation check refuses.",
    429: "Over a budget or a queue; Retry-After says when to come back, where that is known.",
    500: "Ours; the cause is in a log, with the request id.",
    503: "No server answers now.",
    504: "Not started, or not answered, in time.",
}


def _error() -> Schema:
    properties: Schema = {
        "message": {"type": "string", "description": "what is wrong; limit: …; fix: …"},
        "type": {"enum": sorted({*TYPES.values(), "invalid_request_error", "server_error"})},
        "param": {**TEXT_OR_NULL, "description": "path of the field that is meant"},
        "code": {"enum": sorted(STATUS_OF), "description": "stable"},
        "limit": TEXT_OR_NULL,
        "fix": TEXT_OR_NULL,
    }
    inner: Schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"type": "object", "properties": {"error": inner}, "required": ["error"], "additionalProperties": False}


def answers(described: str, document: Schema, *, events: bool = False) -> dict[int | str, dict[str, Any]]:
    """`responses` of a path: the document that it gives, as server-sent events too where it streams, and refusals."""
    content: Schema = {"application/json": {"schema": document}}
    if events:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    refusals: dict[int | str, dict[str, Any]] = {
        status: {"description": reason, "content": {"application/json": {"schema": _error()}}}
        for status, reason in REASONS.items()
    }
    return {200: {"description": described, "content": content}, **refusals}


def body(document: Schema) -> dict[str, Any]:
    """`openapi_extra` of a path that takes a JSON document."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": document}}}}
