"""Samplers and logits for the tests of sampling."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from proteus.language.sample import Sampler
from proteus.language.sampling import Sampling

Floats = npt.NDArray[np.float32]
Chances = npt.NDArray[np.float64]


def random_logits(seed: int, size: int = 50, scale: float = 3.0) -> Floats:
    return (scale * np.random.default_rng(seed).standard_normal(size)).astype(np.float32)


def sampler_of(sampling: Sampling, *, prompt: Sequence[int] = (), stop: Sequence[int] = (), size: int) -> Sampler:
    prompt_ids = np.array(prompt, dtype=np.int32)
    return Sampler(sampling, prompt_ids=prompt_ids, stop_ids=frozenset(stop), vocab_size=size)


def choose_next(sampler: Sampler, logits: Floats) -> int:
    return sampler.choose(logits, int(logits.argmax()), float(logits.max()))


def choose(
    sampling: Sampling, logits: Floats, times: int = 1, *, prompt: Sequence[int] = (), stop: Sequence[int] = ()
) -> list[int]:
    """An answer of `times` tokens, each from the same logits."""
    sampler = sampler_of(sampling, prompt=prompt, stop=stop, size=len(logits))
    return [choose_next(sampler, logits) for _ in range(times)]


def probabilities(logits: Floats, sampling: Sampling) -> Chances:
    """What the first token is drawn from."""
    return sampler_of(sampling, size=len(logits)).distribution(logits)
