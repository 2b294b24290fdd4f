from __future__ import annotations

import math

import numpy as np
import pytest

from proteus.language.sampling import Sampling
from tests.language.samplers import random_logits, sampler_of


@pytest.mark.parametrize("size", [2, 50, 5000])
def test_logprobs_are_those_of_the_raw_logits_whatever_is_sampled(size: int) -> None:
    logits = random_logits(1, size=size)
    fields = {"temperature": 0.3, "top_k": 1, "logit_bias": {0: 100.0}, "repetition_penalty": 2.0, "top_logprobs": 20}
    sampler = sampler_of(Sampling(logprobs=True, **fields), prompt=[0, 1], size=size)  # type: ignore[arg-type]
    told = sampler.logprobs(logits, 1)
    exact = logits.astype(np.float64) - np.log(np.exp(logits.astype(np.float64)).sum())
    assert told.token_id == 1 and told.logprob == pytest.approx(exact[1], rel=1e-12)
    assert [number for number, _ in told.top] == np.argsort(-logits, kind="stable")[:20].tolist()
    assert [value for _, value in told.top] == pytest.approx(sorted(exact, reverse=True)[:20], rel=1e-12)


def test_of_equally_likely_tokens_the_lower_id_comes_first() -> None:
    sampler = sampler_of(Sampling(logprobs=True, top_logprobs=3), size=6)
    told = sampler.logprobs(np.array([1, 7, 1, 7, 7, 1], dtype=np.float32), 5)
    assert [number for number, _ in told.top] == [1, 3, 4]
    assert told.logprob == pytest.approx(told.top[0][1] - 6)


def test_impossible_tokens_are_left_out_so_that_json_can_carry_the_rest() -> None:
    sampler = sampler_of(Sampling(logprobs=True, top_logprobs=5), size=4)
    told = sampler.logprobs(np.array([-np.inf, 2, -np.inf, 2], dtype=np.float32), 3)
    assert told.top == ((1, math.log(0.5)), (3, math.log(0.5))) and told.logprob == math.log(0.5)


def test_none_of_the_most_likely_are_told_unless_asked_for() -> None:
    assert sampler_of(Sampling(logprobs=True), size=50).logprobs(random_logits(0), 4).top == ()


def test_large_logits_do_not_overflow() -> None:
    told = sampler_of(Sampling(logprobs=True), size=2).logprobs(np.array([3e38, -3e38], dtype=np.float32), 0)
    assert told.logprob == 0
    told = sampler_of(Sampling(logprobs=True), size=2).logprobs(np.array([3e38, 3e38], dtype=np.float32), 1)
    assert told.logprob == math.log(0.5)
