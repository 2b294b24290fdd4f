"""Logits to the next token of one request: penalties, bias and bans, then greedy or a draw. V vocabulary.

The same logits, sampling and seed give the same token, whatever slot or neighbours a request has. What neighbours can
change is the last bits of the logits, as in every batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from proteus.errors import InvalidRequest
from proteus.language.generation import TokenLogprobs
from proteus.language.logprobs import token_logprobs
from proteus.language.penalties import Penalties
from proteus.language.ranking import Floats, Ids, kth_highest
from proteus.language.sampling import Sampling

Weights = npt.NDArray[np.float64]

COLDEST = 1e-250  # so that no quotient overflows; far above it already only scores equal to the highest have a chance
FEW = 1024  # weights that are summed and sorted as they are
FLOORS = (0.1, 1e-2, 1e-3, 1e-4)  # of the highest weight: tried in turn, so that few tokens are sorted for top_p


class Sampler:
    """Chooses the tokens of one request; holds its random numbers and what it chose so far.

    In this order, each as in transformers where it has it: repetition penalty over prompt and answer, frequency and
    presence penalties over the answer, logit_bias, min_tokens; then the highest, the lowest id among equals, or with a
    temperature: temperature, top_k, top_p, min_p and one random number of the request's own per token.
    """

    def __init__(
        self,
        sampling: Sampling,
        *,
        prompt_ids: npt.NDArray[np.integer[Any]],
        stop_ids: frozenset[int],
        vocab_size: int,
    ) -> None:
        """`prompt_ids` without the placeholders of pictures; `stop_ids` are all that end the answer."""
        self._sampling = sampling
        self._num_chosen = 0
        penalised = sampling.frequency_penalty or sampling.presence_penalty or sampling.repetition_penalty != 1
        self._penalties = Penalties(sampling, prompt_ids=prompt_ids, vocab_size=vocab_size) if penalised else None
        self._biased_ids = np.array(list(sampling.logit_bias), dtype=np.intp)
        self._biases = np.array(list(sampling.logit_bias.values()), dtype=np.float32)
        self._stop_ids = np.array(sorted(number for number in stop_ids if number < vocab_size), dtype=np.intp)
        self._random = np.random.Generator(np.random.PCG64(sampling.seed)) if sampling.temperature else None
        self._leaves_logits = not penalised and not sampling.logit_bias
        # The next token is the highest, whatever the logits; `choose` need not be asked.
        self.is_plain = self._leaves_logits and self._random is None and sampling.min_tokens == 0

    def choose(self, logits: Floats, highest: int, peak: float) -> int:
        """The next id; `highest` and `peak` are argmax and maximum of the logits (V,), known for the whole batch.

        Raises InvalidRequest where min_tokens leaves no token that the model could say.
        """
        if self.is_plain:
            return highest
        scores = self.adjusted(logits)
        if scores is not logits:
            highest = int(scores.argmax())
            peak = float(scores[highest])
            _check_possible(peak)
        if self._random is not None:
            ids, weights = weigh(scores, peak, self._sampling)
            place = draw(weights, self._random.random())
            highest = place if ids is None else int(ids[place])
        self._note(highest)
        return highest

    def logprobs(self, logits: Floats, token_id: int) -> TokenLogprobs:
        """Of raw logits (V,), with as many of the most likely tokens as sampling asks for."""
        return token_logprobs(logits, token_id, peak=float(logits.max()), num_top=self._sampling.top_logprobs)

    def adjusted(self, logits: Floats) -> Floats:
        """Logits (V,) after penalties, bias and min_tokens: a copy where they change anything."""
        banned = self._stop_ids if self._num_chosen < self._sampling.min_tokens else self._stop_ids[:0]
        if self._leaves_logits and len(banned) == 0:
            return logits
        scores = logits.copy()
        if self._penalties is not None:
            self._penalties.apply(scores)
        if len(self._biased_ids):
            scores[self._biased_ids] += self._biases
        scores[banned] = -np.inf
        return scores

    def distribution(self, logits: Floats) -> Weights:
        """What the next token is drawn from, (V,), all of it; for a temperature above 0."""
        scores, chances = self.adjusted(logits), np.zeros(len(logits))
        peak = float(scores.max())
        _check_possible(peak)
        ids, weights = weigh(scores, peak, self._sampling)
        chances[slice(None) if ids is None else ids] = weights / weights.sum()
        return chances

    def _note(self, token_id: int) -> None:
        self._num_chosen += 1
        if self._penalties is not None:
            self._penalties.add(token_id)
        self.is_plain = self._leaves_logits and self._random is None and self._num_chosen >= self._sampling.min_tokens


def weigh(scores: Floats, peak: float, sampling: Sampling) -> tuple[Ids | None, Weights]:
    """Ids that may follow, ascending (None: all of V), and their chances, not yet summing to 1; `peak` has weight 1.

    Scores equal to the k-th stay in top_k. Of equal scores at the edge of top_p the higher ids stay.
    """
    ids = _shortlist(scores, peak, sampling)
    weights = (scores if ids is None else scores[ids]).astype(np.float64)
    weights -= peak
    if sampling.temperature != 1:
        weights /= max(sampling.temperature, COLDEST)
    np.exp(weights, out=weights)
    if sampling.top_p < 1:
        ids, weights = _keep(_nucleus(weights, sampling.top_p), ids, weights)
    if sampling.min_p > 0:
        ids, weights = _keep(np.flatnonzero(weights >= sampling.min_p), ids, weights)
    return ids, weights


def draw(weights: Weights, random: float) -> int:
    """The place where `random`, of [0, 1), falls; never one without weight."""
    if len(weights) <= FEW:
        return _passed(np.cumsum(weights), random)
    # Sums of blocks first: a running sum over all of V takes longer than all else.
    ends = np.cumsum(np.add.reduceat(weights, np.arange(0, len(weights), FEW)))
    block = _passed(ends, random)
    cumulative = np.cumsum(weights[block * FEW : (block + 1) * FEW])
    within = random * ends[-1] - (ends[block - 1] if block else 0.0)
    place = min(np.searchsorted(cumulative, within, side="right"), np.searchsorted(cumulative, cumulative[-1]))
    return block * FEW + int(place)  # at most its last that has weight: the block's two sums differ in the last bits


def _passed(cumulative: Weights, random: float) -> int:
    """Where a running sum passes this share of its end."""
    return int(np.searchsorted(cumulative, random * cumulative[-1], side="right"))


def _check_possible(peak: float) -> None:
    if peak == -np.inf:
        raise InvalidRequest(
            "no token is left to choose: all that the model could say end the answer",
            limit="sampling.min_tokens keeps the answer from ending",
            fix="lower min_tokens or name fewer stop_token_ids",
        )


def _shortlist(scores: Floats, peak: float, sampling: Sampling) -> Ids | None:
    """Where the scores themselves tell who cannot follow: before the exponentials, which cost the most."""
    if 0 < sampling.top_k < len(scores):
        return np.flatnonzero(scores >= kth_highest(scores, sampling.top_k))
    if sampling.min_p > 0 and sampling.top_p == 1:  # weights settle the edge; here it is taken a little lower
        depth = sampling.temperature * float(np.log(sampling.min_p))
        floor = peak + depth - 1e-6 * (abs(peak) - depth)
        return np.flatnonzero(scores >= np.float32(max(floor, float(np.finfo(np.float32).min))))
    return None


def _nucleus(weights: Weights, top_p: float) -> Ids:
    """Places, ascending, of the most likely tokens that together reach top_p: all but the tail of 1 - top_p."""
    total = float(weights.sum())
    tail = (1 - top_p) * total
    # What lies below the last floor is together less than the tail; a higher one saves sorting.
    floors = (*(FLOORS if len(weights) > FEW else ()), tail / len(weights))
    for floor in floors:
        places = np.flatnonzero(weights >= floor)
        likely = weights[places]
        rest = total - float(likely.sum())
        if rest <= tail:
            break
    ascending = np.sort(likely)
    is_tail = rest + np.cumsum(ascending) <= tail
    first = min(int(is_tail.sum()), len(ascending) - 1)  # the most likely token always stays
    edge = ascending[first]
    is_kept = likely >= edge
    num_equal_in_tail = first - int(np.searchsorted(ascending, edge, side="left"))
    is_kept[np.flatnonzero(likely == edge)[:num_equal_in_tail]] = False
    kept: Ids = places[is_kept]
    return kept


def _keep(places: Ids, ids: Ids | None, weights: Weights) -> tuple[Ids, Weights]:
    return places if ids is None else ids[places], weights[places]
