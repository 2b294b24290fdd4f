"""How a request wants its tokens chosen and when it ends: the checked form of the JSON document `sampling`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from proteus.errors import InvalidRequest
from proteus.language.wrong_fields import shortened, wrong_field
from proteus.limits import MAX_STOPS

MAX_BIASES = 1024


class LogitBias(Mapping[int, float]):
    """What is added to the logits of some ids; cannot be changed, so that a Sampling can be hashed."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[int, float] = MappingProxyType({})) -> None:
        self._values = dict(sorted(values.items()))

    def __getitem__(self, token_id: int) -> float:
        return self._values[token_id]

    def __iter__(self) -> Iterator[int]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(tuple(self._values.items()))

    def __repr__(self) -> str:
        return f"LogitBias({self._values})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Temperature 0 is greedy; what is left out changes nothing; without a seed the choice is not repeatable."""

    max_tokens: int = 16
    min_tokens: int = 0  # until then no end-of-answer token and none of stop_token_ids is chosen
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0  # 0: off
    min_p: float = 0.0  # of the probability of the most likely token
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = LogitBias()
    logprobs: bool = False
    top_logprobs: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()  # text ends before the first of them
    stop_token_ids: tuple[int, ...] = ()  # besides the checkpoint's own

    def __post_init__(self) -> None:
        object.__setattr__(self, "logit_bias", LogitBias(self.logit_bias))

    @classmethod
    def from_json(cls, document: bytes) -> Self:
        """Raises InvalidRequest naming the field, its value and its limit."""
        try:
            fields = dict(_Fields.model_validate_json(document))
        except ValidationError as error:
            raise wrong_field(error, "sampling", _Fields.model_fields) from error
        fields["logit_bias"] = {int(number): bias for number, bias in fields["logit_bias"].items()}
        sampling = cls(**fields)
        _check_together(sampling)
        return sampling

    def for_choice(self, index: int) -> Self:
        """For answer `index` of the `n` to one request: a seed of its own, derived from the request's."""
        if index == 0 or self.seed is None:
            return self
        digest = hashlib.sha256(f"proteus choice {index} of seed {self.seed}".encode()).digest()
        return replace(self, seed=int.from_bytes(digest[:8], "big") >> 1)


def check_vocabulary(sampling: Sampling, vocab_size: int) -> None:
    """Raises InvalidRequest where the request names an id that the model does not have."""
    for field, ids in (("logit_bias", sampling.logit_bias), ("stop_token_ids", sampling.stop_token_ids)):
        for number in ids:
            if not 0 <= number < vocab_size:
                raise InvalidRequest(
                    f"sampling.{field} names the id {shortened(number)}",
                    limit=f"0 to {vocab_size - 1}, the vocabulary",
                    fix="use ids of the checkpoint's tokenizer",
                )


Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
Bias = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]
IdAsText = Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,9})\z")]  # names of JSON are strings; one way to write an id


class _Fields(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    max_tokens: Annotated[int, Field(ge=1)] = 16
    min_tokens: Annotated[int, Field(ge=0)] = 0
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    frequency_penalty: Penalty = 0.0
    presence_penalty: Penalty = 0.0
    repetition_penalty: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    logit_bias: Annotated[dict[IdAsText, Bias], Field(max_length=MAX_BIASES)] = {}
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] = 0
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    stop: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(max_length=MAX_STOPS)] = ()
    stop_token_ids: tuple[Annotated[int, Field(ge=0)], ...] = ()


def _check_together(sampling: Sampling) -> None:
    if sampling.min_tokens > sampling.max_tokens:
        raise InvalidRequest(
            f"sampling.min_tokens = {shortened(sampling.min_tokens)}",
            limit=f"max_tokens = {shortened(sampling.max_tokens)}",
            fix="lower min_tokens or raise max_tokens",
        )
    if sampling.top_logprobs and not sampling.logprobs:
        raise InvalidRequest(
            f"sampling.top_logprobs = {sampling.top_logprobs}",
            limit="0 without logprobs",
            fix="send logprobs = true",
        )
