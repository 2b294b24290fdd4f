from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proteus.language.penalties import FIRST_ROOM, LARGEST, Penalties
from proteus.language.sampling import Sampling
from tests.language.samplers import Floats, choose, choose_next, random_logits, sampler_of

SIZE = 300


def penalised(logits: Floats, sampling: Sampling, prompt: list[int], answer: list[int]) -> Floats:
    penalties = Penalties(sampling, prompt_ids=np.array(prompt, dtype=np.int32), vocab_size=len(logits))
    for token_id in answer:
        penalties.add(token_id)
    scores = logits.copy()
    penalties.apply(scores)
    return scores


ids = st.lists(st.integers(0, SIZE - 1), max_size=3 * FIRST_ROOM)


@given(prompt=ids, answer=ids, frequency=st.floats(-2, 2), presence=st.floats(-2, 2), repetition=st.floats(0.1, 10))
@settings(deadline=None, max_examples=150)
def test_what_occurred_counts_as_often_as_it_did(
    prompt: list[int], answer: list[int], frequency: float, presence: float, repetition: float
) -> None:
    logits = random_logits(0, size=SIZE)
    sampling = Sampling(frequency_penalty=frequency, presence_penalty=presence, repetition_penalty=repetition)
    expected = logits.astype(np.float64)
    for number in {*prompt, *answer}:
        expected[number] *= repetition if expected[number] < 0 else 1 / repetition
    for number, count in Counter(answer).items():
        expected[number] -= count * frequency + presence
    np.testing.assert_allclose(penalised(logits, sampling, prompt, answer), expected, rtol=1e-4, atol=1e-4)


def test_the_prompt_counts_for_the_repetition_penalty_only() -> None:
    logits = np.array([3, 2, 1], dtype=np.float32)
    assert choose(Sampling(frequency_penalty=2.0, presence_penalty=2.0), logits, prompt=[0, 0, 0]) == [0]
    assert choose(Sampling(repetition_penalty=2.0), logits, prompt=[0, 0, 0]) == [1]


def test_frequency_grows_with_each_time_and_presence_does_not() -> None:
    logits = np.array([3.5, 2, 0], dtype=np.float32)
    assert choose(Sampling(frequency_penalty=1.0), logits, times=5) == [0, 0, 1, 0, 1]
    assert choose(Sampling(presence_penalty=1.0), logits, times=5) == [0, 0, 0, 0, 0]


def test_an_empty_prompt_and_ids_that_the_model_lacks_change_nothing() -> None:
    logits, sampling = random_logits(1, size=10), Sampling(repetition_penalty=3.0)
    np.testing.assert_array_equal(penalised(logits, sampling, [], []), logits)
    np.testing.assert_array_equal(penalised(logits, sampling, [10, 11, -1, 2**31 - 1], []), logits)


@pytest.mark.parametrize("penalty", [5e-324, 1e-300, 1e-45, 1e300, 1.7e308])
def test_extreme_repetition_penalties_stay_finite_and_in_order(penalty: float) -> None:
    logits = np.array([1e30, 5, 0, -0.0, -5, -1e30, -np.inf], dtype=np.float32)
    scores = penalised(logits, Sampling(repetition_penalty=penalty), list(range(7)), [])
    assert scores[-1] == -np.inf and np.isfinite(scores[:-1]).all()
    assert (np.diff(scores) <= 0).all() and np.abs(scores[:-1]).max() <= LARGEST
    sampler = sampler_of(Sampling(repetition_penalty=penalty, temperature=1.0), prompt=range(7), size=7)
    assert sampler.distribution(logits).sum() == pytest.approx(1)


def test_a_long_answer_costs_no_recount() -> None:
    """Ids are kept once, however often they come; room grows with the distinct ones only."""
    sampler = sampler_of(Sampling(frequency_penalty=0.001), size=SIZE)
    logits = random_logits(2, size=SIZE)
    for _ in range(500):
        choose_next(sampler, logits)
    assert sampler._penalties is not None
    assert len(sampler._penalties._answer.ids) == len(set(sampler._penalties._answer.ids.tolist())) < SIZE
    assert sampler._penalties._answer.counts.sum() == 500
