"""What the models that read pictures are asked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from perf.input_data import Load, Tensors, Value, tensors
from perf.pictures import Asked, Photograph, accepted_photographs, held_out, most_pictures, photograph
from proteus.contract import (
    CHAT,
    CONNECTOR,
    IMAGE_BYTES,
    IMAGE_FEATURES,
    IMAGE_PREPROCESS,
    IMAGE_TOKENS,
    LLM,
    PIXEL_VALUES,
    SCOPE_KEY,
    TARGET_PX,
    VISION_ENCODER,
    ModelSpec,
    Shapes,
    TensorSpec,
)
from proteus.deployment import Deployment
from proteus.language.messages import Message, PicturePart, TextPart
from proteus.language.prompt import PromptRenderer

NUM_PICTURES = 6  # of each size
NUM_MIXED = 24
MAX_TOKENS = 16  # and no fewer, so that every answer is the same work
OWN_SIZE = np.zeros(2, dtype=np.int32)  # as target_px: nothing is made smaller


def loads(deployment: Deployment, shapes: Shapes, salt: str) -> Iterator[Load]:
    """Of every model, the cheap buckets first; no two files of other `salt` share an entry of a cache."""
    kinds = list(accepted_photographs(deployment.image))
    yield from _chat(deployment, kinds, salt)
    for spec in (IMAGE_TOKENS, IMAGE_PREPROCESS):
        for kind in kinds:
            yield Load(spec=spec, bucket=kind.bucket, request=_one_picture(spec, kind, salt), cached=True)
    yield _random(VISION_ENCODER, PIXEL_VALUES, shapes, f"{shapes.image_size_px} px")
    yield _random(CONNECTOR, IMAGE_FEATURES, shapes, f"{shapes.visual_tokens} tokens")
    yield from _llm(deployment, shapes, salt)


def _chat(deployment: Deployment, kinds: Sequence[Photograph], salt: str) -> Iterator[Load]:
    """Text alone, one picture of each size, and 1, 2 … pictures of any size by turns."""

    def text(number: int) -> Tensors:
        return chat([], _question(number), f"{salt}-{number}")

    def one(number: int, kind: Photograph) -> Tensors:
        asked = photograph(kind, number % NUM_PICTURES)
        return chat([asked], asked.question, f"{salt}-{number}")

    most = most_pictures(deployment)
    mixed = cache(lambda: [*(found := held_out(deployment, NUM_MIXED)), *found])

    def several(number: int) -> Tensors:
        first = number % NUM_MIXED
        pictures = mixed()[first : first + 1 + number % most]
        return chat(pictures, pictures[-1].question, f"{salt}-{number}")

    yield Load(spec=CHAT, bucket="text", request=text, cached=True)
    for kind in kinds:
        yield Load(spec=CHAT, bucket=kind.bucket, request=partial(one, kind=kind), cached=True)
    yield Load(spec=CHAT, bucket=f"1 to {most} pictures", request=several, cached=True)


def chat(pictures: Sequence[Asked], question: str, cache_scope: str) -> Tensors:
    """One request of the door, its pictures as a tensor."""
    content: list[dict[str, str]] = [*({"type": "image"} for _ in pictures), {"type": "text", "text": question}]
    document: dict[str, Any] = {
        "messages": [{"role": "user", "content": content}],
        "max_tokens": MAX_TOKENS,
        "min_tokens": MAX_TOKENS,
        "cache_scope": cache_scope,
    }
    if not pictures:
        return tensors(CHAT, {"request": json.dumps(document)})
    return tensors(
        CHAT,
        {
            "request": json.dumps(document),
            "image_bytes": b"".join(one.picture for one in pictures),
            "image_lengths": np.array([len(one.picture) for one in pictures]),
        },
    )


def _one_picture(spec: ModelSpec, kind: Photograph, salt: str) -> Callable[[int], Tensors]:
    """A cache scope of its own for each request: the processor cache goes by the bytes and the scope."""

    def request(number: int) -> Tensors:
        values: dict[str, Value] = {
            IMAGE_BYTES.name: photograph(kind, number % NUM_PICTURES).picture,
            SCOPE_KEY.name: hashlib.sha256(f"{salt}-{number}".encode()).digest(),
            TARGET_PX.name: OWN_SIZE,
        }
        return tensors(spec, values)

    return request


def _random(spec: ModelSpec, tensor: TensorSpec, shapes: Shapes, bucket: str) -> Load:
    """Numbers without meaning: they are as much work as any."""

    def request(number: int) -> Tensors:
        rng = np.random.default_rng(number)
        return tensors(spec, {tensor.name: rng.standard_normal(shapes.resolve(tensor.dims), dtype=np.float32)})

    return Load(spec=spec, bucket=bucket, request=request, cached=False)


def _llm(deployment: Deployment, shapes: Shapes, salt: str) -> Iterator[Load]:
    """The prompts that the door would make of a question, without and with a picture."""
    renderer = PromptRenderer.from_checkpoint(deployment.checkpoint_path)
    sampling = json.dumps({"max_tokens": MAX_TOKENS, "min_tokens": MAX_TOKENS}).encode()

    def request(number: int, num_pictures: int) -> Tensors:
        parts: list[PicturePart | TextPart] = [*map(PicturePart, range(num_pictures)), TextPart(_question(number))]
        prompt = renderer.render([Message("user", tuple(parts))], [shapes.visual_tokens] * num_pictures)
        values: dict[str, Value] = {
            "input_ids": prompt.input_ids,
            "sampling": sampling,
            "scheduling": json.dumps({"cache_scope": f"{salt}-{number}"}).encode(),
        }
        if num_pictures:
            rng = np.random.default_rng(number)
            rows = rng.standard_normal((prompt.visual_tokens, shapes.hidden_size), dtype=np.float32)
            values |= {"visual_tokens": rows, "visual_spans": np.array(prompt.visual_spans, dtype=np.int32)}
        return tensors(LLM, values)

    yield Load(spec=LLM, bucket="text", request=lambda number: request(number, 0), cached=True)
    yield Load(spec=LLM, bucket="1 picture", request=lambda number: request(number, 1), cached=True)


def _question(number: int) -> str:
    return f"How many shapes are there in picture {number}?"
