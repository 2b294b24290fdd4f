"""Real pictures and questions as perf_analyzer's input data, of the sizes and numbers that the contract accepts."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from export.world.draw import draw
from export.world.questions import TYPES, question_of
from export.world.scene import scene
from proteus.limits import ImageLimits, LimitTables

MAX_RATIO = 2.0  # of the sides; a camera's pictures are hardly more elongated
TEXT_TOKENS = 256  # of the context, left for the question and the answer
FORMATS = ("png", "jpeg")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One encoded picture and a question about it."""

    picture: bytes
    question: str


def held_out(limits: LimitTables, num_pictures: int) -> list[Asked]:
    """Pictures the model was not trained on, in the formats that are accepted by turns, each with one question."""
    formats = [name for name in FORMATS if name in limits.image.formats]
    max_pixels = min(limits.image.max_pixels, limits.tiers.auto.max_pixels)
    return [_asked(seed, limits.image, max_pixels, formats[seed % len(formats)]) for seed in range(num_pictures)]


def accepted_size(limits: ImageLimits, max_pixels: int, rng: random.Random) -> tuple[int, int]:
    """(width, height) in px that the contract accepts; areas are as likely in each order of magnitude."""
    ratio = min(limits.max_aspect_ratio, MAX_RATIO) ** rng.random()
    largest = min(math.sqrt(max_pixels / ratio), limits.max_side_px)
    short_px = max(limits.min_side_px, math.floor(limits.min_side_px * (largest / limits.min_side_px) ** rng.random()))
    long_px = max(short_px, min(math.floor(short_px * ratio), limits.max_side_px, max_pixels // short_px))
    return (long_px, short_px) if rng.random() < 0.5 else (short_px, long_px)


def most_pictures(limits: LimitTables) -> int:
    """Pictures that one request can have, by every limit that counts them; at least one."""
    tier, request = limits.tiers.auto, limits.admission.request
    room = [limits.image.max_pictures, (limits.llm.context_tokens - TEXT_TOKENS) // tier.max_visual_tokens]
    if request.decoded_pixels is not None:
        room.append(request.decoded_pixels // min(limits.image.max_pixels, tier.max_pixels))
    return max(1, min(room))


def _asked(seed: int, limits: ImageLimits, max_pixels: int, format_name: str) -> Asked:
    drawn, rng = scene("heldout", seed), random.Random(seed)
    found = (question_of(drawn, type_, rng) for type_ in rng.sample(TYPES, len(TYPES)))
    question = next(one for one in found if one is not None)
    encoded = io.BytesIO()
    draw(drawn).resize(accepted_size(limits, max_pixels, rng)).save(encoded, format_name)
    return Asked(picture=encoded.getvalue(), question=question.text)


def write_image_tokens(file: Path, asked: list[Asked], *, num_requests: int) -> None:
    """`num_requests` requests of `image_tokens`, each with a cache key of its own: none is answered from the cache."""
    _write(file, (_image_tokens(asked[number % len(asked)].picture, number) for number in range(num_requests)))


def write_chat(file: Path, asked: list[Asked], *, most: int, max_tokens: int) -> None:
    """One request of `chat` for each picture, with 1, 2 … `most` pictures by turns, the pictures after it included."""
    around = [*asked, *asked]
    requests = (around[number : number + 1 + number % most] for number in range(len(asked)))
    _write(file, (_chat(pictures, max_tokens) for pictures in requests))


def _image_tokens(picture: bytes, number: int) -> dict[str, Any]:
    key = hashlib.sha256(number.to_bytes(8, "big") + picture).digest()
    own_size = {"content": [0, 0], "shape": [2]}
    return {"image_bytes": _bytes(picture), "cache_key": _bytes(key), "target_px": own_size}


def _chat(asked: Sequence[Asked], max_tokens: int) -> dict[str, Any]:
    """The question is that of the last picture."""
    content = [*({"type": "image"} for _ in asked), {"type": "text", "text": asked[-1].question}]
    document = {"messages": [{"role": "user", "content": content}], "max_tokens": max_tokens}
    return {
        "request": {"content": [json.dumps(document)], "shape": [1]},
        "image_bytes": _bytes(b"".join(one.picture for one in asked)),
        "image_lengths": {"content": [len(one.picture) for one in asked], "shape": [len(asked)]},
    }


def _bytes(data: bytes) -> dict[str, Any]:
    return {"content": {"b64": base64.b64encode(data).decode()}, "shape": [len(data)]}


def _write(file: Path, requests: Iterator[dict[str, Any]]) -> None:
    file.write_text(json.dumps({"data": list(requests)}))
