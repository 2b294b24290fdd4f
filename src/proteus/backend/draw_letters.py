"""The denoiser's events as JSON and one row of numbers, on their way to the door.

The numbers of all latents lie one after the other, in the order of the events that have a shape.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from math import prod
from typing import Any

import numpy as np

from proteus.backend.failures import revive
from proteus.backend.mailbox import Letter
from proteus.errors import ProteusError
from proteus.generation.task import DrawEnd, DrawEvent, Floats

DrawLetter = Letter[DrawEvent]


def pack(letters: Sequence[DrawLetter]) -> tuple[bytes, Floats]:
    """The JSON, and the numbers of all latents."""
    latents = [
        letter.content.clean.reshape(-1)
        for letter in letters
        if isinstance(letter.content, DrawEvent) and letter.content.clean is not None
    ]
    document = json.dumps([_packed(letter) for letter in letters]).encode()
    return document, np.concatenate(latents) if latents else np.empty(0, dtype=np.float32)


def unpack(document: bytes, latents: Floats, sender: str) -> Iterator[DrawLetter]:
    """Letters of `pack`; `sender` is the model they come from."""
    start = 0
    for key, content in json.loads(document):
        if isinstance(content, str):
            yield Letter(bytes.fromhex(key), revive(content, sender))
            continue
        clean = None
        if (shape := content["shape"]) is not None:
            clean = latents[start : start + prod(shape)].reshape(shape)
            start += prod(shape)
        end = content["end"]
        event = DrawEvent(
            step=content["step"], steps=content["steps"], clean=clean, end=None if end is None else DrawEnd(**end)
        )
        yield Letter(bytes.fromhex(key), event)


def _packed(letter: DrawLetter) -> tuple[str, Any]:
    event = letter.content
    if isinstance(event, ProteusError):
        return letter.request_key.hex(), str(event)
    return letter.request_key.hex(), {
        "step": event.step,
        "steps": event.steps,
        "shape": None if event.clean is None else event.clean.shape,
        "end": None if event.end is None else asdict(event.end),
    }
