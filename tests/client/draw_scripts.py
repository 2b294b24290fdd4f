"""What the peer's model `draw` does: it answers by the wire contract, with flat pictures and no model behind.

The text of the prompt chooses what happens: see `DRAW_SCRIPTS`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from typing import Any

import grpc
from PIL import Image
from tritonclient.grpc import service_pb2

from tests.client.tensors import output, string

DRAW_PARAMETERS = {
    "deployment": "../deployments/demo.toml",
    "draw.formats": '["png", "jpeg"]',
    "draw.max_steps": "100",
    "draw.default_size": "64x64",
    "draw.admission.queues.media.max_queue": "8",
}
DRAW_CONTRACT = {
    "formats": ["png", "jpeg"],
    "max_steps": 100,
    "default_size": "64x64",
    "admission": {"queues": {"media": {"max_queue": 8}}},
}
DRAW_REFUSAL = "invalid_request: steps = 1000; limit: [draw] max_steps = 100; fix: ask for fewer"
SEED, STEPS, REVISION = 1234, 20, "0f" * 32
STAGES_MS = {"parse": 0.125, "condition": 3.0, "denoise": 250.5, "total": 260.0}
Draw = Callable[[Any, dict[str, Any], grpc.ServicerContext], Iterator[Any]]


def draw_event(event: dict[str, Any] | None, image: bytes = b"", report: dict[str, Any] | None = None) -> Any:
    """One response message of the `draw` model."""
    response = service_pb2.ModelInferResponse(model_name="draw")
    output(response, "event", "BYTES", 1, string(json.dumps(event or {})))
    output(response, "image", "UINT8", len(image), image)
    if report is not None:
        output(response, "report", "BYTES", 1, string(json.dumps(report)))
    return service_pb2.ModelStreamInferResponse(infer_response=response)


def picture(index: int, step: int, size: tuple[int, int], format: str) -> bytes:
    """A flat colour that tells index and step."""
    encoded = io.BytesIO()
    Image.new("RGB", size, (10 * step, 50 * index, 200)).save(encoded, format=format)
    return encoded.getvalue()


def settings_of(document: dict[str, Any], index: int) -> dict[str, Any]:
    """All that draws the picture of this index again."""
    seed = document.get("seed")
    return {
        "prompt": document["prompt"],
        "negative_prompt": document.get("negative_prompt", ""),
        "size": document.get("size", "64x64"),
        "steps": document.get("steps", STEPS),
        "guidance": document.get("guidance", 3.0),
        "sampler": document.get("sampler", "euler"),
        "seed": SEED if seed is None else seed,
        "image_index": document.get("first_index", 0) + index,
        "revision": REVISION,
    }


def preview(document: dict[str, Any], index: int, step: int) -> Any:
    """Half as wide and high as the picture."""
    settings = settings_of(document, index)
    width, height = (int(side) // 2 for side in settings["size"].split("x"))
    format = document.get("format", "png")
    told = {"kind": "preview", "index": index, "step": step, "steps": settings["steps"], "format": format}
    return draw_event(told | {"width_px": width, "height_px": height}, picture(index, step, (width, height), format))


def drawn(document: dict[str, Any], index: int) -> Any:
    """A picture that is done."""
    settings = settings_of(document, index)
    width, height = (int(side) for side in settings["size"].split("x"))
    format = document.get("format", "png")
    told = {"kind": "image", "index": index, "format": format, "width_px": width, "height_px": height}
    told |= {"seed": settings["seed"], "image_index": settings["image_index"], "settings": settings}
    return draw_event(told, picture(index, settings["steps"], (width, height), format))


def report_of(document: dict[str, Any], indexes: list[int], finish_reason: str = "done") -> dict[str, Any]:
    """What ends the stream, of the pictures that were drawn."""
    settings = settings_of(document, 0)
    branches = 1 if settings["guidance"] == 1 else 2
    evaluations = settings["steps"] * branches
    cost = {"evaluations": evaluations, "branches": branches, "accelerator_ms": 100.5, "queue_ms": 0.5}
    return {
        "finish_reason": finish_reason,
        "usage": {
            "images": len(indexes),
            "text_tokens": 12,
            "evaluations": evaluations * len(indexes),
            "branches": branches,
            "latent_tokens": 64,
            "token_passes": 64 * evaluations * len(indexes),
            "joules": 3,
        },
        "stages_ms": STAGES_MS,
        "first_preview_ms": 40.25 if document.get("preview_every") else None,
        "images": [
            {"index": index, "seed": settings["seed"], "image_index": index, "denoise_ms": 250.5} | cost
            for index in indexes
        ],
    }


def _draw(peer: Any, document: dict[str, Any], context: grpc.ServicerContext) -> Iterator[Any]:
    """The pictures in reversed order, and of each a preview at every k-th step but the last."""
    indexes = list(range(document.get("n", 1)))
    if every := document.get("preview_every", 0):
        for step in range(every, settings_of(document, 0)["steps"], every):
            yield from (preview(document, index, step) for index in indexes)
    yield draw_event({"kind": "weather", "index": 0})
    yield from (drawn(document, index) for index in reversed(indexes))
    yield draw_event(None, report=report_of(document, indexes))


def _refuse(peer: Any, document: dict[str, Any], context: grpc.ServicerContext) -> Iterator[Any]:
    yield service_pb2.ModelStreamInferResponse(error_message=DRAW_REFUSAL)


def _stopped(peer: Any, document: dict[str, Any], context: grpc.ServicerContext) -> Iterator[Any]:
    """Stopped by another client after the first of two pictures."""
    yield drawn(document, 0)
    yield draw_event(None, report=report_of(document, [0], "cancelled"))


def _break_off(peer: Any, document: dict[str, Any], context: grpc.ServicerContext) -> Iterator[Any]:
    yield drawn(document, 0)
    yield service_pb2.ModelStreamInferResponse(error_message="internal: the server could not finish this request")


def _end_early(peer: Any, document: dict[str, Any], context: grpc.ServicerContext) -> Iterator[Any]:
    yield drawn(document, 0)


def _go_away(peer: Any, document: dict[str, Any], context: grpc.ServicerContext) -> Iterator[Any]:
    yield preview(document, 0, 1)
    context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")


def _never_end(peer: Any, document: dict[str, Any], context: grpc.ServicerContext) -> Iterator[Any]:
    yield drawn(document, 0)
    peer.cancelled.wait(timeout=20)


def stop(peer: Any, document: dict[str, Any], context: grpc.ServicerContext) -> Iterator[Any]:
    """Of requests with the id `mine` there is one."""
    yield draw_event(None, report={"stopped": int(document["stop"]["request_id"] == "mine")})


DRAW_SCRIPTS: dict[str, Draw] = {
    "refuse": _refuse,
    "stopped": _stopped,
    "break off": _break_off,
    "end early": _end_early,
    "go away": _go_away,
    "never end": _never_end,
}


def draw_script(document: dict[str, Any]) -> Draw:
    """What answers this document."""
    return stop if "stop" in document else DRAW_SCRIPTS.get(document["prompt"], _draw)
