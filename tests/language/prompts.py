"""Prompts of the tiny checkpoint, spelt: "A" is a picture, 7 are seven tokens of text that every prompt shares."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from proteus.language.engine import OnnxEngine
from proteus.language.generation import Spans
from proteus.language.sampling import Sampling
from tests.language.clients import Client

IMAGE = 3
WIDTH = 64  # of the tiny language model
VOCABULARY = 387
VISUAL_TOKENS = 9  # of each picture
_TEXT = [1, *(8 + 7 * number % 320 for number in range(600))]

Rows = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Prompt:
    ids: list[int]
    spans: Spans = ()
    rows: Rows | None = None
    keys: tuple[bytes, ...] = field(default=())

    def client(self, engine: OnnxEngine, sampling: Sampling, *, names: bool = False, **more: Any) -> Client:
        """Of a request with this prompt; `names` sends the keys of its pictures too."""
        return Client(
            engine,
            self.ids,
            sampling,
            visual_tokens=self.rows,
            visual_spans=self.spans,
            media_keys=self.keys if names else (),
            **more,
        )


def picture(letter: str) -> Rows:
    """The rows of one picture: always the same for the same letter."""
    return np.random.default_rng(ord(letter)).standard_normal((VISUAL_TOKENS, WIDTH)).astype(np.float32)


def spell(*parts: str | int | list[int]) -> Prompt:
    """Pictures by letter, so many tokens of text (the same from the first on in every prompt), or ids as they are."""
    ids: list[int] = []
    spans: list[tuple[int, int]] = []
    rows: list[Rows] = []
    keys: list[bytes] = []
    num_text = 0
    for part in parts:
        if isinstance(part, str):
            spans.append((len(ids), VISUAL_TOKENS))
            ids += [IMAGE] * VISUAL_TOKENS
            rows.append(picture(part))
            keys.append(part.encode() * 32)
        elif isinstance(part, int):
            ids += _TEXT[num_text : num_text + part]
            num_text += part
        else:
            ids += part
    return Prompt(ids=ids, spans=tuple(spans), rows=np.concatenate(rows) if rows else None, keys=tuple(keys))
