"""How a token is chosen, as the sampling page of its documentation says."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from tensorrt_llm.sampling_params import SamplingParams


@dataclass
class Logprob:
    logprob: float
    rank: int | None = None


class TorchSampler:
    def __init__(self, params: SamplingParams, *, num_prompt: int) -> None:
        self._params = params
        self._random = np.random.default_rng(params.seed)
        self._ignored = min(params.prompt_ignore_length or 0, num_prompt)

    def choose(
        self, logits: torch.Tensor, prompt: list[int], answer: list[int]
    ) -> tuple[int, dict[int, Logprob] | None]:
        raw = logits.double().numpy()
        scores = self._adjusted(raw, prompt, answer)
        token_id = int(scores.argmax()) if self._params.is_greedy else self._draw(scores)
        if self._params.logprobs is None:
            return token_id, None
        probabilities = raw - raw.max()
        probabilities = probabilities - np.log(np.exp(probabilities).sum())
        order = np.argsort(-probabilities, kind="stable")
        told = [*order[: self._params.logprobs].tolist(), token_id]
        ranks = {number: int((probabilities > probabilities[number]).sum()) + 1 for number in told}
        return token_id, {number: Logprob(float(probabilities[number]), ranks[number]) for number in told}

    def _adjusted(self, raw: np.ndarray, prompt: list[int], answer: list[int]) -> np.ndarray:
        params, scores = self._params, raw.copy()
        if params.repetition_penalty not in (None, 1.0):
            seen = sorted({*prompt, *answer})
            scores[seen] = np.where(
                scores[seen] < 0, scores[seen] * params.repetition_penalty, scores[seen] / params.repetition_penalty
            )
        counted = [*prompt[self._ignored :], *answer]
        for token_id in set(counted):
            scores[token_id] -= (params.frequency_penalty or 0.0) * counted.count(token_id)
            scores[token_id] -= params.presence_penalty or 0.0
        if params.embedding_bias is not None:
            if params.embedding_bias.dtype != torch.float32 or params.embedding_bias.shape != raw.shape:
                raise ValueError("embedding_bias must be float32 of [vocab_size]")
            scores += params.embedding_bias.numpy()
        if len(answer) < (params.min_tokens or 0):
            scores[params.end_id] = -np.inf
        return scores

    def _draw(self, scores: np.ndarray) -> int:
        params = self._params
        scores = scores / (params.temperature if params.temperature is not None else 1.0)
        if params.top_k:
            scores = np.where(scores >= np.sort(scores)[-params.top_k], scores, -np.inf)
        chances = np.exp(scores - scores.max())
        chances /= chances.sum()
        if params.top_p is not None and params.top_p < 1:
            order = np.argsort(-chances, kind="stable")
            kept = order[: int((np.cumsum(chances[order]) < params.top_p).sum()) + 1]
            chances = np.where(np.isin(np.arange(len(chances)), kept), chances, 0.0)
        if params.min_p:
            chances = np.where(chances >= params.min_p * chances.max(), chances, 0.0)
        return int(self._random.choice(len(chances), p=chances / chances.sum()))
