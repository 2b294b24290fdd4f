"""The paths of cost, models and contract in the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proteus.cost.vector import NAMES
from proteus.gateway.openai import chat_schema, images_schema
from proteus.gateway.openai.openapi import OPEN, Schema, answers, body

TOTAL_BYTES: Schema = {
    "type": ["integer", "null"],
    "minimum": 1,
    "description": "of the whole file, where `url` holds only its first bytes",
}
COUNT: Schema = {"type": "integer", "minimum": 0}
AMOUNT: Schema = {"type": ["number", "null"], "minimum": 0}


def _object(properties: Mapping[str, Schema], *more: str) -> Schema:
    """All of `properties` are there; `more` names those that may be."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": [name for name in properties if name not in more],
        "additionalProperties": True,
    }


RESOURCES: Schema = _object(dict.fromkeys(NAMES, COUNT))
PRICE: Schema = _object(
    {"currency": {"type": "string"}, "amount": AMOUNT, "per_picture": AMOUNT, "per_thousand_tokens": AMOUNT}
)
COST: Schema = _object(
    {
        "object": {"const": "cost"},
        "model": {"type": "string", "description": "that would answer"},
        "pool": {"enum": ["text", "picture", "draw"]},
        "auto": _object({"model": {"type": "string"}, "tier": {}, "because": {"type": "string"}}),
        "resources": RESOURCES,
        "text_tokens": COUNT,
        "visual_tokens": COUNT,
        "kv_bytes": COUNT,
        "context_tokens": {"type": ["integer", "null"], "description": "the model's: prompt and answer together"},
        "pictures": {
            "type": "array",
            "items": _object(dict.fromkeys(("width_px", "height_px", "bytes", "visual_tokens", "patches"), COUNT)),
        },
        "drawing": OPEN,
        "price": {**PRICE, "description": "the most that it can come to"},
        "fits": {"const": True, "description": "what does not is refused, as the request itself would be"},
    },
    "auto",
    "drawing",
)
MODEL: Schema = _object(
    {
        "id": {"type": "string"},
        "object": {"const": "model"},
        "created": COUNT,
        "owned_by": {"type": "string"},
        "kind": {"enum": ["chat", "draw"]},
    }
)
MODELS: Schema = _object({"object": {"const": "list"}, "data": {"type": "array", "items": MODEL}})
CONTRACT: Schema = _object(
    {"object": {"const": "contract"}, "models": {"type": "array", "items": {"type": "string"}}, "prices": OPEN}
)


def cost_path() -> dict[str, Any]:
    """Keywords of the route. A chat document, whose pictures may be beginnings, or one that draws."""
    drawing = images_schema.REQUEST["requestBody"]["content"]["application/json"]["schema"]
    return {
        "summary": "What a request would cost; nothing is run",
        "openapi_extra": body({"anyOf": [_with_total_bytes(chat_schema.request_schema()), drawing]}),
        "responses": answers("Its resources, tokens and the most that it can come to.", COST),
    }


def path(summary: str, described: str, document: Schema) -> dict[str, Any]:
    """Keywords of a route that only tells."""
    return {"summary": summary, "responses": answers(described, document)}


def _with_total_bytes(schema: Any) -> Any:
    """The same schema, in which every picture's place may say how large the whole file is."""
    if isinstance(schema, list):
        return [_with_total_bytes(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    copy = {name: _with_total_bytes(part) for name, part in schema.items()}
    if {"url", "detail"} <= copy.keys() and isinstance(copy["url"], dict):
        copy["total_bytes"] = TOTAL_BYTES
    return copy
