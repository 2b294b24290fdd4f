"""POST /v1/cost: what a request to chat or to draw would come to, planned as there; nothing is run, no server is asked.

A picture may be only the beginning of its file, with `total_bytes` beside its `url`: its header tells what it costs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from proteus.cost.planner import MediaCost
from proteus.door.document import MAX_WHOLE
from proteus.door.pictures import Picture
from proteus.gateway.http.body import load_json
from proteus.gateway.http.presence import Out
from proteus.gateway.openai.chat_request import model_of, read_chat
from proteus.gateway.openai.fields import written, wrong
from proteus.gateway.openai.images_request import ImagesRequest
from proteus.gateway.order import Visit
from proteus.gateway.planning.artist import Sketch
from proteus.gateway.planning.reader import Reading

if TYPE_CHECKING:
    from proteus.gateway.gateway import Gateway

TOTAL_BYTES = "total_bytes"


async def answer(gateway: Gateway, visit: Visit, body: bytes, out: Out) -> None:
    """Raises what the request itself would, up to the moment when it asks for room."""
    document = await load_json(body, gateway.settings.http)
    await out.json(
        drawing_cost(_sketch(gateway, visit, document))
        if document.get("prompt") is not None
        else reading_cost(await _reading(gateway, visit, document))
    )


def _sketch(gateway: Gateway, visit: Visit, document: dict[str, Any]) -> Sketch:
    with visit.watch.stage("plan"):
        asked = ImagesRequest.parse(document)
        artist = gateway.models.artist(asked.model, visit.whose)
        return artist.plan(visit, asked.drawing(artist))


async def _reading(gateway: Gateway, visit: Visit, document: dict[str, Any]) -> Reading:
    with visit.watch.stage("plan"):
        reader = gateway.models.reader(model_of(document), visit.whose)
        document, beginnings = without_total_bytes(document)
        wish = read_chat(document, reader.limits.text)
        return await reader.plan(visit, wish.request, visit.own_seat, beginnings)


def without_total_bytes(document: Mapping[str, Any]) -> tuple[dict[str, Any], dict[int, int]]:
    """The document as chat takes it, and `total_bytes` by the index of the picture. Raises InvalidRequest."""
    beginnings = dict[int, int]()
    stripped = dict(document)
    if isinstance(document.get("messages"), list):
        numbers = iter(range(MAX_WHOLE))
        stripped["messages"] = [_message(message, numbers, beginnings) for message in document["messages"]]
    return stripped, beginnings


def _message(message: Any, numbers: Iterator[int], beginnings: dict[int, int]) -> Any:
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list):
        return message
    return message | {"content": [_part(part, numbers, beginnings) for part in content]}


def _part(part: Any, numbers: Iterator[int], beginnings: dict[int, int]) -> Any:
    if not isinstance(part, dict) or part.get("type") != "image_url":
        return part
    index, place = next(numbers), part.get("image_url")
    if not isinstance(place, dict) or TOTAL_BYTES not in place:
        return part
    total = place[TOTAL_BYTES]
    if total is not None:
        beginnings[index] = _checked(total, index)
    return part | {"image_url": {name: value for name, value in place.items() if name != TOTAL_BYTES}}


def _checked(total: object, index: int) -> int:
    if isinstance(total, bool) or not isinstance(total, int) or total < 1:
        what = f"picture {index + 1}: {TOTAL_BYTES} = {written(total)}"
        raise wrong(what, TOTAL_BYTES, limit="1 or more", fix="give the file's size in bytes")
    return total


def reading_cost(reading: Reading) -> dict[str, Any]:
    """What a question would come to, with the longest answer and nothing cached."""
    prepared, resources = reading.prepared, reading.prepared.resources
    return {
        "object": "cost",
        "model": reading.model,
        "pool": reading.pool,
        **({} if reading.auto is None else {"auto": asdict(reading.auto)}),
        "latency_class": prepared.latency_class,
        "resources": dict(resources.named()),
        "text_tokens": prepared.prompt.text_tokens,
        "visual_tokens": prepared.prompt.visual_tokens,
        "kv_bytes": resources.kv_bytes + resources.cross_kv_bytes,
        "max_tokens": prepared.max_tokens,
        "context_tokens": reading.context_tokens,
        "pictures": [_picture(*both) for both in zip(prepared.pictures, prepared.costs, strict=True)],
        "price": reading.price.document(),
        "fits": True,
    }


def _picture(picture: Picture, cost: MediaCost) -> dict[str, Any]:
    width_px, height_px = picture.header.upright_px
    return {
        "width_px": width_px,
        "height_px": height_px,
        "format": picture.header.format,
        "bytes": picture.num_bytes,
        "tier": picture.tier,
        "bucket": cost.bucket.label,
        "given_px": None if cost.given_px is None else list(cost.given_px),
        "downscaled": cost.downscaled,
        "visual_tokens": cost.plan.visual_tokens,
        "patches": cost.plan.patches,
    }


def drawing_cost(sketch: Sketch) -> dict[str, Any]:
    """What all pictures of a request would come to."""
    plan, resources = sketch.plan, sketch.plan.resources
    wish, cost = plan.wish, plan.cost
    return {
        "object": "cost",
        "model": sketch.model,
        "pool": "draw",
        "latency_class": plan.latency_class,
        "resources": dict(resources.named()),
        "text_tokens": plan.text_tokens,
        "visual_tokens": 0,
        "kv_bytes": 0,
        "context_tokens": None,
        "pictures": [],
        "drawing": {
            "size": wish.size,
            "n": wish.n,
            "steps": wish.steps,
            "guidance": wish.guidance,
            "sampler": wish.sampler,
            "format": wish.format,
            "branches": cost.branches,
            "latent_tokens": cost.latent_tokens,
        },
        "price": sketch.price.document(),
        "fits": True,
    }
