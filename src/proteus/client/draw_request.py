"""Prompt and options -> the request message of the `draw` model: one JSON document, the tensor `request`."""

from __future__ import annotations

import math
from typing import Any, Literal, TypedDict

from proteus.client.errors import InvalidInput
from proteus.client.wire import document_request


class DrawOptions(TypedDict, total=False):
    """How to draw; what is left out takes the server's default."""

    negative_prompt: str  # what guidance leads away from
    size: str  # "64x64": width x height in px
    steps: int
    guidance: float  # 1 is none, and costs half
    sampler: Literal["euler", "ddim", "heun", "dpmpp_2m"]
    seed: int | None  # None: the server draws one and tells it
    first_index: int  # of the first picture: with the seed, names its noise
    n: int  # pictures
    format: Literal["png", "jpeg", "webp"]
    quality: int  # 1 to 100, of JPEG and WebP
    preview_every: int  # steps between two previews; 0 sends none
    preview_by: Literal["linear", "decoder"]  # a fast guess of the colours, or the decoder itself
    request_id: str  # by which `Client.stop` stops it
    cache_scope: str  # requests share encoded prompts only within one scope
    tenant: str  # whose share of the server's capacity it is; else the cache scope
    latency_class: Literal["interactive", "batch"]  # "batch" can wait
    deadline_ms: int  # to be started; a request that waits longer is refused
    timeout_s: float | None  # for all pictures; None waits without end


def build_draw(prompt: str, options: DrawOptions) -> Any:
    """The `ModelInferRequest`.

    Raises `InvalidInput` for what JSON cannot carry, `TypeError` for an option that does not exist.
    """
    unknown = options.keys() - DrawOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"unknown option {sorted(unknown)[0]!r}; there are {', '.join(DrawOptions.__annotations__)}")
    fields = {name: value for name, value in options.items() if name != "timeout_s"}
    for name, value in fields.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise InvalidInput(f"{name} = {value} cannot be sent: give a finite number")
    return document_request("draw", {"prompt": prompt, **fields})
