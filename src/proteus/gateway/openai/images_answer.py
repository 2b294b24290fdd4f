"""What `draw` sends to OpenAI's words: partial images, pictures that are done, and the answer to the whole request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from proteus.client.drawing import Drawn, Encoded, Preview
from proteus.door.draw_plan import DrawPlan
from proteus.gateway.http.presence import as_json
from proteus.gateway.openai.in_base64 import with_base64

BACKGROUND = "opaque"
PARTIAL, COMPLETED = "image_generation.partial_image", "image_generation.completed"
Document = dict[str, Any]


def partial_image(preview: Preview, number: int, plan: DrawPlan, created: int) -> bytes:
    """`number` counts the partial images of one picture, from 0."""
    step = {"step": preview.step, "steps": preview.steps}
    return _with_picture(_event(PARTIAL, preview, plan, created) | {"partial_image_index": number, **step}, preview)


def completed(picture: Drawn, plan: DrawPlan, created: int, more: Mapping[str, Any]) -> bytes:
    """Its usage is that of this picture by itself: the prompt is counted with each."""
    event = _event(COMPLETED, picture, plan, created) | {"usage": usage(plan, pictures=1), **_noise(picture), **more}
    return _with_picture(event, picture)


def whole(pictures: Sequence[Drawn], plan: DrawPlan, created: int, more: Mapping[str, Any]) -> bytes:
    """The answer without a stream."""
    head = as_json(
        {
            "created": created,
            "background": BACKGROUND,
            "output_format": plan.wish.format,
            "size": plan.wish.size,
            "usage": usage(plan, pictures=len(pictures)),
            **more,
        }
    )
    data = [_with_picture({"index": picture.index, **_noise(picture)}, picture) for picture in pictures]
    return b"".join((head[:-1], b',"data":[', b",".join(data), b"]}"))


def usage(plan: DrawPlan, *, pictures: int) -> Document:
    """Input is the prompt, and the negative one where it is read; output the latent tokens of the pictures."""
    text_tokens, image_tokens = plan.text_tokens, plan.cost.latent_tokens * pictures
    return {
        "input_tokens": text_tokens,
        "output_tokens": image_tokens,
        "total_tokens": text_tokens + image_tokens,
        "input_tokens_details": {"text_tokens": text_tokens, "image_tokens": 0},
        "output_tokens_details": {"text_tokens": 0, "image_tokens": image_tokens},
    }


def bill(report: Mapping[str, Any]) -> Document:
    """Of the object `proteus`, what only a drawing has."""
    names = ("index", "seed", "image_index", "evaluations", "accelerator_ms", "queue_ms", "denoise_ms")
    pictures = [{name: picture[name] for name in names} for picture in report.get("images", ())]
    return {"first_preview_ms": report.get("first_preview_ms"), "pictures": pictures}


def _noise(picture: Drawn) -> Document:
    return {"seed": picture.seed, "image_index": picture.image_index}


def _with_picture(document: Document, picture: Encoded) -> bytes:
    return with_base64(as_json(document), "b64_json", picture.data)


def _event(kind: str, picture: Encoded, plan: DrawPlan, created: int) -> Document:
    return {
        "type": kind,
        "background": BACKGROUND,
        "created_at": created,
        "output_format": picture.format,
        "quality": "auto",
        "size": plan.wish.size,
        "index": picture.index,
    }
