"""A request's sampling in the words of TensorRT-LLM; what its sampler cannot do is refused by name."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import numpy as np

from proteus.errors import InvalidRequest
from proteus.language.generation import TokenLogprobs
from proteus.language.sampling import Sampling
from proteus.language.tensorrt_llm_versions import Api, Version

COLDEST = 1e-6  # below, in 32 bits, nothing but the likeliest token has a chance
LEAST_TOP_P = 1e-6  # below, too
SMALLEST, LARGEST = 1e-30, 1e30  # of what 32 bits hold; no factor beyond them does anything else
NO_END = -1  # `end_id` of an answer that only its length or one of `stop_token_ids` ends
# The first version known to have a sampler that does not silently ignore the field (docs/tensorrt_llm.md).
SINCE = {
    "min_tokens": Version(1, 3, 0, 26),
    "min_p": Version(1, 3, 0, 26),
    "repetition_penalty": Version(1, 3, 0, 26),
    "frequency_penalty": Version(1, 3, 0, 26),
    "presence_penalty": Version(1, 3, 0, 26),
    "seed": Version(1, 3, 0, 26),
}


def sampling_params(
    api: Api, sampling: Sampling, *, stop_ids: frozenset[int], max_tokens: int, num_prompt: int, vocab_size: int
) -> Any:
    """Raises InvalidRequest naming a field that the installed version would ignore."""
    chooses = sampling.temperature >= COLDEST
    fields: dict[str, Any] = {"max_tokens": max_tokens, "detokenize": False, "include_stop_str_in_output": True}
    fields |= _end(api.version, sampling, stop_ids, max_tokens)
    if chooses:
        fields |= _chance(api.version, sampling, vocab_size)
    fields |= _penalties(api.version, sampling, num_prompt)
    if sampling.logit_bias:
        fields["embedding_bias"] = api.tensor(_bias(sampling.logit_bias, vocab_size))
    if sampling.logprobs:
        fields["logprobs"] = max(1, sampling.top_logprobs)
    return api.SamplingParams(**fields)


def token_logprobs(token_id: int, of_ids: Mapping[int, Any], num_top: int) -> TokenLogprobs:
    """Of one token of an answer, whose most likely rivals TensorRT-LLM tells in any order."""
    best = sorted(((number, float(given.logprob)) for number, given in of_ids.items()), key=lambda pair: -pair[1])
    return TokenLogprobs(
        token_id=token_id, logprob=float(of_ids[token_id].logprob), top=tuple(best[:num_top]) if num_top else ()
    )


def _end(version: Version, sampling: Sampling, stop_ids: frozenset[int], max_tokens: int) -> dict[str, Any]:
    """Its sampler bans one end-of-answer token until `min_tokens`, and none of the stop tokens."""
    ids = sorted(stop_ids)
    pad = {"pad_id": ids[0] if ids else 0}
    if sampling.min_tokens == 0 or not ids:
        return {"end_id": NO_END, "stop_token_ids": ids or None, **pad}
    _check_known(version, "min_tokens", sampling.min_tokens)
    if len(ids) > 1:
        raise InvalidRequest(
            f"sampling.min_tokens = {sampling.min_tokens} with {len(ids)} tokens that end the answer",
            limit="one on TensorRT-LLM, which keeps no other from coming early",
            fix="leave min_tokens out, or name no stop_token_ids",
        )
    return {"end_id": ids[0], "min_tokens": min(sampling.min_tokens, max_tokens), **pad}


def _chance(version: Version, sampling: Sampling, vocab_size: int) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "temperature": min(sampling.temperature, LARGEST),
        "top_p": max(sampling.top_p, LEAST_TOP_P),
    }
    if 0 < sampling.top_k < vocab_size:  # it takes 32 bits, and all tokens are no choice
        fields["top_k"] = sampling.top_k
    if sampling.min_p:
        _check_known(version, "min_p", sampling.min_p)
        fields["min_p"] = sampling.min_p
    if sampling.seed is not None:
        _check_known(version, "seed", sampling.seed)
        fields["seed"] = sampling.seed
    elif version >= SINCE["seed"]:  # those without one would share one stream, the same after each start
        fields["seed"] = secrets.randbits(63)
    return fields


def _penalties(version: Version, sampling: Sampling, num_prompt: int) -> dict[str, Any]:
    """Repetition counts prompt and answer, the others the answer alone."""
    neutral = {"repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0}
    fields: dict[str, Any] = {name: value for name in neutral if (value := getattr(sampling, name)) != neutral[name]}
    for name, value in fields.items():
        _check_known(version, name, value)
    if fields:
        fields["prompt_ignore_length"] = num_prompt
    if "repetition_penalty" in fields:
        fields["repetition_penalty"] = min(max(sampling.repetition_penalty, SMALLEST), LARGEST)
    return fields


def _check_known(version: Version, field: str, value: float) -> None:
    if version < SINCE[field]:
        raise InvalidRequest(
            f"sampling.{field} = {value}",
            limit=f"TensorRT-LLM {version} ignores it; {SINCE[field]} and later do not",
            fix="leave it out",
        )


def _bias(biases: Mapping[int, float], vocab_size: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    row = np.zeros(vocab_size, dtype=np.float32)  # (V,)
    row[list(biases)] = list(biases.values())
    return row
