"""Every choice as transformers' own processors and warpers make it, one after the other, on logits of all kinds."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from proteus.language.sampling import Sampling
from tests.language.samplers import Chances, Floats, choose_next, sampler_of

pytestmark = pytest.mark.oracle

EOS = (1, 4)
TOKENS = 4  # of each answer


class Reference:
    """Scores and chances as transformers has them. It has no formula of OpenAI's: that is counted anew here."""

    def __init__(self, sampling: Sampling, prompt: list[int]) -> None:
        self.sampling, self.prompt = sampling, prompt
        self.answer: list[int] = []

    def scores(self, logits: Floats) -> Floats:
        import torch
        from transformers import (
            MinNewTokensLengthLogitsProcessor,
            RepetitionPenaltyLogitsProcessor,
            SequenceBiasLogitsProcessor,
        )

        ids = torch.tensor([[*self.prompt, *self.answer]], dtype=torch.long)
        scores = torch.from_numpy(logits.copy())[None]
        if self.sampling.repetition_penalty != 1 and ids.numel():
            scores = RepetitionPenaltyLogitsProcessor(self.sampling.repetition_penalty)(ids, scores)
        scores = scores - torch.from_numpy(self.openai(len(logits)))
        if self.sampling.logit_bias:
            bias: list[Any] = [[[number], value] for number, value in self.sampling.logit_bias.items()]
            scores = SequenceBiasLogitsProcessor(bias)(ids, scores)
        if self.sampling.min_tokens:
            end = [*EOS, *self.sampling.stop_token_ids]
            processor = MinNewTokensLengthLogitsProcessor(len(self.prompt), self.sampling.min_tokens, end)
            scores = processor(ids, scores)
        result: Floats = scores[0].numpy()
        return result

    def openai(self, size: int) -> Floats:
        """What is taken off: c * frequency + (c > 0) * presence."""
        taken = np.zeros(size, dtype=np.float32)
        frequency, presence = np.float32(self.sampling.frequency_penalty), np.float32(self.sampling.presence_penalty)
        for number, count in Counter(self.answer).items():
            taken[number] = np.float32(count) * frequency + presence
        return taken

    def chances(self, scores: Floats) -> Chances:
        """In float64, so that who is in and who is out hangs on the rules and not on rounding."""
        import torch
        from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

        warped = torch.from_numpy(scores.astype(np.float64))[None]
        ids = torch.zeros((1, 0), dtype=torch.long)
        warped = TemperatureLogitsWarper(self.sampling.temperature)(ids, warped)
        if self.sampling.top_k:
            warped = TopKLogitsWarper(self.sampling.top_k)(ids, warped)
        if self.sampling.top_p < 1:
            warped = TopPLogitsWarper(self.sampling.top_p)(ids, warped)
        if self.sampling.min_p:
            warper: Any = MinPLogitsWarper(self.sampling.min_p)
            warped = warper(ids, warped)
        result: Chances = warped.softmax(-1)[0].numpy()
        return result


def drawn_sampling(random: np.random.Generator, size: int, *, greedy: bool) -> Sampling:
    """Each field is off half of the time."""

    def maybe(value: Any, off: Any) -> Any:
        return value if random.random() < 0.5 else off

    num_biased = min(size, int(random.choice([1, 5, 40])))
    biased = random.choice(size, num_biased, replace=False).tolist()
    return Sampling(
        min_tokens=maybe(int(random.integers(1, TOKENS + 1)), 0),
        temperature=0.0 if greedy else maybe(float(random.choice([0.01, 0.3, 0.7, 1.3, 2.5, 20.0])), 1.0),
        top_k=maybe(int(random.choice([1, 2, 7, 50, 400, 10**6])), 0),
        top_p=maybe(float(random.choice([1e-6, 0.1, 0.5, 0.9, 0.95, 0.999])), 1.0),
        min_p=maybe(float(random.choice([1e-6, 0.01, 0.05, 0.3, 0.9, 1.0])), 0.0),
        frequency_penalty=maybe(float(random.uniform(-2, 2)), 0.0),
        presence_penalty=maybe(float(random.uniform(-2, 2)), 0.0),
        repetition_penalty=maybe(float(random.choice([0.3, 0.9, 1.05, 1.3, 5.0])), 1.0),
        logit_bias=maybe(dict(zip(biased, random.uniform(-100, 100, num_biased).tolist(), strict=True)), {}),
        stop_token_ids=maybe((2,), ()),
        seed=int(random.integers(2**31)),
    )


def drawn_logits(random: np.random.Generator, size: int) -> Floats:
    """Flat ones, peaked ones, and ones with masked tokens."""
    logits = random.standard_normal(size) * random.choice([0.1, 1.0, 4.0, 15.0])
    if random.random() < 0.5:
        logits[random.integers(size, size=5)] += random.uniform(0, 20, 5)
    if random.random() < 0.2:
        logits[random.random(size) < 0.3] = -np.inf
        logits[5:8] = 1.0, 2.0, 3.0
    row: Floats = logits.astype(np.float32)
    return row


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.mark.parametrize("greedy", [True, False], ids=["greedy", "drawn"])
@pytest.mark.parametrize(("size", "cases"), [(8, 600), (60, 600), (3000, 400), (40_000, 40)])
def test_scores_and_chances_are_those_of_transformers(size: int, cases: int, greedy: bool) -> None:
    for case in range(cases):
        random = np.random.default_rng((size, case, greedy))
        sampling = drawn_sampling(random, size, greedy=greedy)
        prompt = random.integers(0, size, random.choice([0, 3, 30])).tolist()
        reference = Reference(sampling, prompt)
        stop = (*EOS, *sampling.stop_token_ids)
        sampler = sampler_of(sampling, prompt=prompt, stop=stop, size=size)
        for _ in range(TOKENS):
            logits = drawn_logits(random, size)
            scores = reference.scores(logits)
            np.testing.assert_array_equal(sampler.adjusted(logits), scores, err_msg=str(sampling))
            if not greedy:
                expected, told = reference.chances(scores), sampler.distribution(logits)
                np.testing.assert_array_equal(told > 0, expected > 0, err_msg=str(sampling))
                np.testing.assert_allclose(told, expected, rtol=1e-9, err_msg=str(sampling))
            chosen = choose_next(sampler, logits)
            assert not greedy or chosen == int(scores.argmax())
            reference.answer.append(chosen)


@pytest.mark.parametrize(
    "fields", [{"top_k": 2}, {"top_k": 3, "min_p": 0.3}, {"min_p": 1.0}, {"top_k": 5, "min_p": 0.5}]
)
def test_equal_logits_stay_or_go_as_in_transformers(fields: dict[str, Any]) -> None:
    for case in range(300):
        random = np.random.default_rng(case)
        logits = (random.integers(-3, 4, 200) / 2).astype(np.float32)
        sampling = Sampling(temperature=float(random.choice([0.5, 1.0, 2.0])), **fields)
        told = sampler_of(sampling, size=200).distribution(logits)
        np.testing.assert_allclose(told, Reference(sampling, []).chances(logits), rtol=1e-9)


@pytest.mark.parametrize("top_p", [0.1, 0.35, 0.5, 0.9])
def test_of_equal_logits_as_many_stay_in_top_p_as_in_transformers(top_p: float) -> None:
    """Which ones is left to its sort."""
    for case in range(300):
        logits = (np.random.default_rng(case).integers(-3, 4, 200) / 2).astype(np.float32)
        sampling = Sampling(temperature=0.7, top_p=top_p)
        told = sampler_of(sampling, size=200).distribution(logits)
        np.testing.assert_allclose(np.sort(told), np.sort(Reference(sampling, []).chances(logits)), rtol=1e-9)


def test_logprobs_are_those_of_log_softmax() -> None:
    import torch

    for case in range(300):
        random = np.random.default_rng(case)
        logits = drawn_logits(random, 500)
        expected = torch.from_numpy(logits.astype(np.float64)).log_softmax(-1).numpy()
        told = sampler_of(Sampling(logprobs=True, top_logprobs=20), size=500).logprobs(logits, int(logits.argmax()))
        assert told.logprob == pytest.approx(expected.max(), rel=1e-9, abs=1e-12)
        assert [value for _, value in told.top] == pytest.approx(np.sort(expected)[::-1][:20], rel=1e-9, abs=1e-12)
