"""Logits to the next token, as transformers chooses it: greedy, or temperature, then top-k, then top-p.

V vocabulary. The same logits, sampling and seed give the same token, whatever slot or neighbours a request has. What
neighbours can change is the last bits of the logits, as in every batch.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from proteus.language.sampling import Sampling

Floats = npt.NDArray[np.float32]


class Sampler:
    """Chooses the tokens of one request; holds its random numbers."""

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._random = np.random.default_rng(sampling.seed)

    def choose(self, logits: Floats, highest: int) -> int:
        """The next id; `highest` is argmax of the logits (V,), computed once for the whole batch."""
        if self._sampling.temperature == 0:
            return highest
        cumulative = np.cumsum(probabilities(logits, self._sampling))
        drawn = self._random.random() * cumulative[-1]
        return int(np.searchsorted(cumulative, drawn, side="right"))


def probabilities(logits: Floats, sampling: Sampling) -> npt.NDArray[np.float64]:
    """What the next token is drawn from, (V,); temperature is above 0. Logits equal to the k-th stay in top-k."""
    scores = logits.astype(np.float64)
    scores = (scores - scores.max()) / sampling.temperature  # highest is 0: no overflow, however small the temperature
    if 0 < sampling.top_k < len(scores):
        kth = np.partition(scores, -sampling.top_k)[-sampling.top_k]
        scores[scores < kth] = -np.inf
    if sampling.top_p < 1:
        order = np.argsort(scores, kind="stable")  # ascending
        below = np.cumsum(_softmax(scores[order])) <= 1 - sampling.top_p
        below[-1] = False  # the most likely token always stays
        scores[order[below]] = -np.inf
    return _softmax(scores)


def _softmax(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    weights: npt.NDArray[np.float64] = np.exp(scores)  # the highest score is 0
    weights /= weights.sum()
    return weights
