"""A prepared request and its pictures' rows to the calls that the language model gets: one for each answer."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from proteus.backend.fleet import LlmCall
from proteus.backend.scheduling import write_scheduling
from proteus.contract import REQUEST_KEY_BYTES
from proteus.door.prepare import Prepared
from proteus.errors import InternalError
from proteus.language.generation import Scheduling
from proteus.language.sampling import Sampling
from proteus.stages import EncodeMarks, Stage

Source = Literal["encoded", "cached", "shared"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VisualTokens:
    rows: npt.NDArray[np.float32]  # (N, D)
    source: Source
    key: bytes  # names the rows: SHA-256 of everything they depend on
    marks: EncodeMarks | None = None  # None: from the encoder cache
    landed_ns: int = 0  # monotonic clock, when they were computed
    preprocess_saved_ms: float = 0.0  # 0: its pixels were computed
    saved_ms: float = 0.0  # by the encoder cache


def encode_stages_ns(seen: Sequence[VisualTokens], begun_ns: int) -> Mapping[Stage, int]:
    """Of pictures that were asked for at `begun_ns`: the stages of the one that came last; of hits there are none.

    Pixels from the processor cache are such a hit: to fetch them is transfer.
    """
    computed = [tokens for tokens in seen if tokens.marks is not None]
    if not computed:
        return {}
    last = max(computed, key=lambda tokens: tokens.landed_ns)
    stages = last.marks.stages_ns(begun_ns, max(begun_ns, last.landed_ns)) if last.marks is not None else {}
    return {stage: ns for stage, ns in stages.items() if stage != "preprocess" or not last.preprocess_saved_ms}


def llm_calls(prepared: Prepared, seen: Sequence[VisualTokens]) -> list[LlmCall]:
    """`seen` for each picture of the prompt, in order; every answer has a seed and a random name of its own."""
    spans = prepared.prompt.visual_spans
    if [len(tokens.rows) for tokens in seen] != [length for _, length in spans]:
        raise InternalError
    rows = np.concatenate([tokens.rows for tokens in seen]) if seen else None
    scheduling = write_scheduling(_scheduling(prepared), time.monotonic())
    return [
        LlmCall(
            request_key=secrets.token_bytes(REQUEST_KEY_BYTES),
            input_ids=prepared.prompt.input_ids,
            visual_tokens=rows,
            visual_spans=tuple(spans),
            media_keys=tuple(tokens.key for tokens in seen),
            sampling=_sampling(prepared, index),
            scheduling=scheduling,
        )
        for index in range(prepared.request.n)
    ]


def _scheduling(prepared: Prepared) -> Scheduling:
    request = prepared.request
    return Scheduling(
        cache_scope=request.cache_scope,
        tenant=request.owner,
        latency_class=prepared.latency_class,
        deadline_s=prepared.deadline_s,
    )


def _sampling(prepared: Prepared, index: int) -> bytes:
    request = prepared.request
    document = {
        "max_tokens": prepared.max_tokens,
        "min_tokens": request.min_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "min_p": request.min_p,
        "frequency_penalty": request.frequency_penalty,
        "presence_penalty": request.presence_penalty,
        "repetition_penalty": request.repetition_penalty,
        "logit_bias": request.logit_bias,
        "logprobs": request.logprobs,
        "top_logprobs": request.top_logprobs,
        "seed": Sampling(seed=request.seed).for_choice(index).seed,
        "stop": request.stop,
    }
    return json.dumps(document).encode()
