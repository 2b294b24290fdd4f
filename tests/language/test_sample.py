from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proteus.language.sample import Sampler
from proteus.language.sampling import Sampling

Floats = npt.NDArray[np.float32]


def random_logits(seed: int, size: int = 50, scale: float = 3.0) -> Floats:
    return (scale * np.random.default_rng(seed).standard_normal(size)).astype(np.float32)


def sampler_of(sampling: Sampling, *, prompt: Sequence[int] = (), stop: Sequence[int] = (), size: int) -> Sampler:
    prompt_ids = np.array(prompt, dtype=np.int32)
    return Sampler(sampling, prompt_ids=prompt_ids, stop_ids=frozenset(stop), vocab_size=size)


def choose(sampling: Sampling, logits: Floats, times: int = 1) -> list[int]:
    sampler = sampler_of(sampling, size=len(logits))
    return [sampler.choose(logits, int(logits.argmax()), float(logits.max())) for _ in range(times)]


def probabilities(logits: Floats, sampling: Sampling) -> npt.NDArray[np.float64]:
    return sampler_of(sampling, size=len(logits)).distribution(logits)


def test_temperature_zero_takes_the_lowest_of_equal_ids() -> None:
    logits = np.array([0, 5, 5, 1], dtype=np.float32)
    assert choose(Sampling(), logits, times=3) == [1, 1, 1]


def test_the_same_seed_gives_the_same_tokens_and_another_seed_others() -> None:
    logits = random_logits(0)
    first, again, other = (choose(Sampling(temperature=1.0, seed=seed), logits, times=40) for seed in (7, 7, 8))
    assert first == again != other


def test_without_a_seed_the_tokens_differ() -> None:
    logits = random_logits(0)
    assert choose(Sampling(temperature=1.0), logits, 40) != choose(Sampling(temperature=1.0), logits, 40)


def test_tokens_come_as_often_as_they_are_likely() -> None:
    logits, sampling = random_logits(1, size=8, scale=1.0), Sampling(temperature=0.8, top_k=5, top_p=0.9, seed=3)
    drawn = np.bincount(choose(sampling, logits, times=6_000), minlength=8) / 6_000
    assert np.abs(drawn - probabilities(logits, sampling)).max() < 0.025  # nearly 4 sigma


@given(
    seed=st.integers(0, 10_000),
    temperature=st.floats(1e-300, 1e3),
    top_k=st.integers(0, 60),
    top_p=st.floats(1e-6, 1.0),
)
def test_any_sampling_gives_an_id_that_may_be_chosen(seed: int, temperature: float, top_k: int, top_p: float) -> None:
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    logits = random_logits(seed)
    (chosen,) = choose(sampling, logits)
    assert probabilities(logits, sampling)[chosen] > 0
    assert 0 <= chosen < len(logits)


def test_masked_logits_are_never_chosen() -> None:
    logits = np.array([-np.inf, 1, -np.inf, 1], dtype=np.float32)
    assert set(choose(Sampling(temperature=5.0, seed=0), logits, times=200)) == {1, 3}


@pytest.fixture(scope="module")
def warped() -> Any:
    """Probabilities after transformers' own temperature, top-k and top-p, in the order that generate() uses."""
    import torch
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    def probabilities_of(logits: Floats, sampling: Sampling) -> npt.NDArray[np.float32]:
        scores = torch.from_numpy(logits)[None]
        scores = TemperatureLogitsWarper(sampling.temperature)(None, scores)
        if sampling.top_k:
            scores = TopKLogitsWarper(sampling.top_k)(None, scores)
        if sampling.top_p < 1:
            scores = TopPLogitsWarper(sampling.top_p)(None, scores)
        result: npt.NDArray[np.float32] = scores.softmax(-1)[0].numpy()
        return result

    return probabilities_of


@pytest.mark.oracle
@given(
    seed=st.integers(0, 10_000),
    temperature=st.sampled_from([0.1, 0.7, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 3, 20, 50, 400]),
    top_p=st.sampled_from([1e-6, 0.1, 0.5, 0.9, 0.95, 1.0]),
)
@settings(deadline=None, max_examples=100)
def test_probabilities_are_those_of_transformers(
    warped: Any, seed: int, temperature: float, top_k: int, top_p: float
) -> None:
    sampling, logits = Sampling(temperature=temperature, top_k=top_k, top_p=top_p), random_logits(seed)
    np.testing.assert_allclose(probabilities(logits, sampling), warped(logits, sampling), atol=1e-5)


@pytest.mark.oracle
def test_equal_logits_at_the_edge_of_top_k_all_stay_as_in_transformers(warped: Any) -> None:
    logits, sampling = np.array([2, 1, 1, 1, 0], dtype=np.float32), Sampling(temperature=1.0, top_k=2)
    np.testing.assert_allclose(probabilities(logits, sampling), warped(logits, sampling), atol=1e-6)
    assert (probabilities(logits, sampling) > 0).tolist() == [True, True, True, True, False]
