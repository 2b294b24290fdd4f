"""The OpenAPI schemas of /v1/images/generations: its request, and its answer without a stream."""

from __future__ import annotations

from typing import get_args

from proteus.door.document import MAX_WHOLE
from proteus.door.draw_request import MAX_FIRST_INDEX
from proteus.gateway.openai.chat_fields import MAX_USER_CHARS
from proteus.gateway.openai.images_request import BACKGROUNDS, MAX_PARTIAL_IMAGES
from proteus.gateway.openai.openapi import OPEN, Schema, answers, body
from proteus.limits import DrawnFormat, PreviewBy, SamplerName

WHOLE: Schema = {"type": "integer", "minimum": 0}


def _optional(kind: str, meaning: str, **more: object) -> Schema:
    return {"type": [kind, "null"], "description": meaning, **more}


def _one_of(meaning: str, *values: str) -> Schema:
    return {"enum": [*values, None], "description": meaning}


_FIELDS: Schema = {
    "model": {"type": "string", "minLength": 1, "description": "a name of GET /v1/models that draws"},
    "prompt": {"type": "string", "minLength": 1, "description": "what to draw"},
    "n": _optional("integer", "pictures", minimum=1),
    "size": _optional("string", "WIDTHxHEIGHT in px, or auto", pattern="^(auto|[1-9][0-9]{0,4}x[1-9][0-9]{0,4})$"),
    "output_format": _one_of("left out, the deployment's first", *get_args(DrawnFormat)),
    "output_compression": _optional("integer", "quality of JPEG and WebP", minimum=1, maximum=100),
    "response_format": _one_of("the only one", "b64_json"),
    "quality": _one_of("the only one; `steps` is what takes more time", "auto"),
    "background": _one_of("pictures are opaque", *BACKGROUNDS),
    "moderation": _one_of("the operator's choice", "auto"),
    "stream": _optional("boolean", "server-sent events, a picture as soon as it is done"),
    "partial_images": _optional(
        "integer", "of each picture, at most; in a stream only", minimum=0, maximum=MAX_PARTIAL_IMAGES
    ),
    "service_tier": _one_of("`flex` can wait", "auto", "default", "flex"),
    "user": _optional("string", "whom you ask for", maxLength=MAX_USER_CHARS),
    "safety_identifier": _optional("string", "whom you ask for; goes before `user`", maxLength=MAX_USER_CHARS),
    "seed": _optional("integer", "draws the same picture again", minimum=0, exclusiveMaximum=MAX_WHOLE),
    "steps": _optional("integer", "denoise steps", minimum=1),
    "guidance": _optional("number", "1 is none, and costs half", minimum=1),
    "negative_prompt": _optional("string", "what guidance leads away from"),
    "sampler": _one_of("how steps are taken", *get_args(SamplerName)),
    "first_index": _optional("integer", "of the first of the seed's pictures", minimum=0, maximum=MAX_FIRST_INDEX),
    "preview_by": _one_of("what makes partial images", *get_args(PreviewBy)),
    "deadline_ms": _optional("integer", "from arrival to the first step", minimum=1),
}
_USAGE: Schema = {
    "type": "object",
    "properties": {
        "input_tokens": WHOLE,
        "output_tokens": WHOLE,
        "total_tokens": WHOLE,
        "input_tokens_details": OPEN,
        "output_tokens_details": OPEN,
    },
    "required": ["input_tokens", "output_tokens", "total_tokens"],
}
_PICTURE: Schema = {
    "type": "object",
    "properties": {"b64_json": {"type": "string"}, "index": WHOLE, "seed": WHOLE, "image_index": WHOLE},
    "required": ["b64_json", "index", "seed", "image_index"],
    "additionalProperties": False,
}
_ANSWER: Schema = {
    "type": "object",
    "properties": {
        "created": WHOLE,
        "data": {"type": "array", "items": _PICTURE},
        "background": {"enum": ["opaque"]},
        "output_format": {"enum": list(get_args(DrawnFormat))},
        "size": {"type": "string"},
        "usage": _USAGE,
        "proteus": OPEN,
    },
    "required": ["created", "data", "background", "output_format", "size", "usage", "proteus"],
    "additionalProperties": False,
}
REQUEST = body(
    {
        "type": "object",
        "properties": _FIELDS,
        "required": ["model", "prompt"],
        "additionalProperties": False,
    }
)
RESPONSES = answers("The pictures, in the order of their index.", _ANSWER, events=True)
