"""What an ask returns: pieces while the text comes, then the whole answer with its bill and its times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class LikelyToken:
    token: str
    logprob: float  # natural logarithm of the model's own probability
    bytes: bytes  # exact, where `token` is no whole character


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob(LikelyToken):
    """Of a token of the answer, with the most likely ones at its place, best first."""

    top_logprobs: tuple[LikelyToken, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What one event of the stream added; `text` may be empty while a character is still incomplete."""

    text: str
    token_ids: tuple[int, ...]
    index: int = 0  # of the answer that it belongs to, where several were asked for
    logprobs: tuple[TokenLogprob, ...] = ()  # one for each id, where asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    text_tokens: int  # every prompt token that is not a visual token
    visual_tokens: int
    output_tokens: int  # of all answers; the token that ended each included
    cached_tokens: int = 0  # of the prompt, that the server did not have to compute


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One of the `n` answers. `token_ids` holds the ending token, which is no part of `text`."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str  # "stop", "length" or "cancelled"
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A complete answer: `choices` are all of them, `text` and what else it says of one is of the first."""

    choices: tuple[Choice, ...]
    usage: Usage
    stages_ms: Mapping[str, float]  # in the order of the stages: up to `decode` they add up to the time to first token
    ingress_ms: Mapping[str, float] = field(default_factory=dict)  # of what `ingress` is made
    ttft_ms: float | None = None  # until the first token left the server; None: there was none
    inter_token_ms: Mapping[str, float] | None = None  # `mean` and `max`; None: fewer than two tokens
    caches: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # by cache: lookups, hits, saved_ms, tokens
    media: tuple[Mapping[str, Any], ...] = ()  # of each picture: size, bucket, tier, downscaled, visual_tokens
    pictures: tuple[str, ...] = ()  # of each distinct picture: "encoded" for this request, "cached" or "shared"

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> str:
        return self.choices[0].finish_reason

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...]:
        return self.choices[0].logprobs
