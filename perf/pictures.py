"""Real pictures and questions as perf_analyzer's input data."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from export.world.draw import draw
from export.world.questions import TYPES, question_of
from export.world.scene import scene


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One encoded picture and a question about it."""

    picture: bytes
    question: str


def held_out(num_pictures: int) -> list[Asked]:
    """Pictures the model was not trained on, PNG and JPEG by turns, each with one question."""
    return [_asked(seed) for seed in range(num_pictures)]


def _asked(seed: int) -> Asked:
    drawn, rng = scene("heldout", seed), random.Random(seed)
    found = (question_of(drawn, type_, rng) for type_ in rng.sample(TYPES, len(TYPES)))
    question = next(one for one in found if one is not None)
    encoded = io.BytesIO()
    draw(drawn).save(encoded, ("PNG", "JPEG")[seed % 2])
    return Asked(picture=encoded.getvalue(), question=question.text)


def write_image_tokens(file: Path, asked: list[Asked], *, num_requests: int) -> None:
    """`num_requests` requests of `image_tokens`, each with a cache key of its own: none is answered from the cache."""
    _write(file, (_image_tokens(asked[number % len(asked)].picture, number) for number in range(num_requests)))


def write_chat(file: Path, asked: list[Asked], *, max_tokens: int) -> None:
    """One request of `chat` for each picture."""
    _write(file, (_chat(one, max_tokens) for one in asked))


def _image_tokens(picture: bytes, number: int) -> dict[str, Any]:
    key = hashlib.sha256(number.to_bytes(8, "big") + picture).digest()
    return {"image_bytes": _bytes(picture), "cache_key": _bytes(key)}


def _chat(asked: Asked, max_tokens: int) -> dict[str, Any]:
    content = [{"type": "image"}, {"type": "text", "text": asked.question}]
    document = {"messages": [{"role": "user", "content": content}], "max_tokens": max_tokens}
    return {
        "request": {"content": [json.dumps(document)], "shape": [1]},
        "image_bytes": _bytes(asked.picture),
        "image_lengths": {"content": [len(asked.picture)], "shape": [1]},
    }


def _bytes(data: bytes) -> dict[str, Any]:
    return {"content": {"b64": base64.b64encode(data).decode()}, "shape": [len(data)]}


def _write(file: Path, requests: Iterator[dict[str, Any]]) -> None:
    file.write_text(json.dumps({"data": list(requests)}))
