"""Repetition, frequency and presence penalties of one answer; what occurred is counted as it comes, never anew."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from proteus.language.ranking import Floats
from proteus.language.sampling import Sampling

LARGEST = np.finfo(np.float32).max
FIRST_ROOM = 64


class Penalties:
    """`prompt_ids` counts for the repetition penalty only; ids that the model does not have count for nothing."""

    def __init__(self, sampling: Sampling, *, prompt_ids: npt.NDArray[np.integer[Any]], vocab_size: int) -> None:
        self._repetition = np.float32(np.clip(sampling.repetition_penalty, 1 / float(LARGEST), float(LARGEST)))
        self._frequency = np.float32(sampling.frequency_penalty)
        self._presence = np.float32(sampling.presence_penalty)
        self._has_repetition = sampling.repetition_penalty != 1
        known = prompt_ids[(prompt_ids >= 0) & (prompt_ids < vocab_size)] if self._has_repetition else prompt_ids[:0]
        self._seen = _Tally(np.unique(known).tolist())  # in prompt and answer
        self._answer = _Tally()

    def add(self, token_id: int) -> None:
        """The answer goes on with this id."""
        if self._has_repetition:
            self._seen.add(token_id)
        if self._frequency or self._presence:
            self._answer.add(token_id)

    def apply(self, scores: Floats) -> None:
        """Changes scores (V,) in place: as RepetitionPenaltyLogitsProcessor of transformers, then OpenAI's formula."""
        if self._has_repetition:
            ids = self._seen.ids
            scores[ids] = _repelled(scores[ids], self._repetition)
        ids = self._answer.ids
        if len(ids):
            scores[ids] -= self._frequency * self._answer.counts + self._presence


def _repelled(scores: Floats, penalty: np.float32) -> Floats:
    with np.errstate(over="ignore"):
        changed = np.where(scores < 0, scores * penalty, scores / penalty)
    if not np.isfinite(changed).all():  # an extreme penalty makes a token unlikely, never impossible
        np.clip(changed, -LARGEST, LARGEST, out=changed)
        changed[scores == -np.inf] = -np.inf
    return changed


class _Tally:
    """Ids in the order in which they came, and how often each did."""

    def __init__(self, first: Iterable[int] = ()) -> None:
        self._place_of = {number: place for place, number in enumerate(first)}
        room = max(FIRST_ROOM, 2 * len(self._place_of))
        self._ids = np.zeros(room, dtype=np.intp)
        self._ids[: len(self._place_of)] = list(self._place_of)
        self._counts = np.zeros(room, dtype=np.float32)
        self._counts[: len(self._place_of)] = 1

    @property
    def ids(self) -> npt.NDArray[np.intp]:
        return self._ids[: len(self._place_of)]

    @property
    def counts(self) -> Floats:
        return self._counts[: len(self._place_of)]

    def add(self, token_id: int) -> None:
        place = self._place_of.setdefault(token_id, len(self._place_of))
        if place == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[place] = token_id
        self._counts[place] += 1
