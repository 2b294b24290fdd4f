"""The model's own logarithms of probability for a chosen token and the most likely ones."""

from __future__ import annotations

import numpy as np

from proteus.language.generation import TokenLogprobs
from proteus.language.ranking import Floats, highest_ids


def token_logprobs(logits: Floats, token_id: int, *, peak: float, num_top: int) -> TokenLogprobs:
    """Of raw logits (V,) whose highest is `peak`. Tokens that are impossible are left out of the most likely ones."""
    above = logits.astype(np.float64)
    above -= peak
    log_sum = float(np.log(np.exp(above).sum()))
    ids = highest_ids(logits, num_top)
    top = tuple(
        (number, value - log_sum)
        for number, value in zip(ids.tolist(), above[ids].tolist(), strict=True)
        if value > -np.inf
    )
    return TokenLogprobs(token_id=token_id, logprob=float(above[token_id]) - log_sum, top=top)
