"""Logarithms of probability in the form that OpenAI's clients know: tokens as text and as bytes."""

from __future__ import annotations

import json
from collections.abc import Sequence

from proteus.language.generation import TokenLogprobs
from proteus.language.stream import Detokenizer

IMPOSSIBLE = -9999.0  # stands for minus infinity, which JSON has no number for


def as_json(entries: Sequence[TokenLogprobs], detokenizer: Detokenizer) -> str:
    """A list of {token, logprob, bytes, top_logprobs: [{token, logprob, bytes}]}."""
    return json.dumps(
        [
            _token(entry.token_id, entry.logprob, detokenizer)
            | {"top_logprobs": [_token(token_id, logprob, detokenizer) for token_id, logprob in entry.top]}
            for entry in entries
        ]
    )


def _token(token_id: int, logprob: float, detokenizer: Detokenizer) -> dict[str, object]:
    return {
        "token": detokenizer.token_text(token_id),
        "logprob": max(logprob, IMPOSSIBLE),
        "bytes": list(detokenizer.token_bytes(token_id)),
    }
