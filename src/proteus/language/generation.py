"""What goes into an engine and what comes out of it: ids and rows in, events out. Engine-neutral.

T prompt tokens, R visual tokens of all pictures, D width of the language model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from proteus.errors import InvalidRequest, PromptTooLong, ProteusError
from proteus.language.sampling import Sampling
from proteus.limits import LatencyClass

FinishReason = Literal["stop", "length", "cancelled"]
Spans = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduling:
    """Whose request it is and how long it can wait."""

    cache_scope: str = ""  # prompts of another scope are never reused
    tenant: str = ""  # whose share of the slots it is
    latency_class: LatencyClass = "text"
    deadline_s: float | None = None  # to get a slot, on the monotonic clock


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GenerationRequest:
    request_key: bytes  # names the request for `cancel`; unique among those in flight
    input_ids: npt.NDArray[np.int32]  # (T,), placeholders expanded
    visual_tokens: npt.NDArray[np.float32] | None  # (R, D), the rows of all spans, in order
    visual_spans: Spans  # (start, length) in input_ids of each picture
    media_keys: tuple[bytes, ...] = ()  # digest of what each span shows; empty: taken from its rows
    sampling: Sampling
    scheduling: Scheduling = Scheduling()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    reason: FinishReason
    cached_tokens: int  # of the prompt, that the prefix cache gave
    queue_us: int  # submitted → prefill begins
    prefill_us: int  # → first token
    decode_us: int  # → last token
    saved_us: int = 0  # prefill of the cached tokens, at the mean time of a token so far


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """Natural logarithms of the model's own probabilities, before any field of sampling changes them."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # the most likely (id, logprob), best first


class Event(NamedTuple):
    """Made for every token of every answer: a frozen dataclass takes three times as long to make."""

    token_ids: tuple[int, ...]  # the end-of-answer token included
    text: str  # whole characters; may be empty
    logprobs: tuple[TokenLogprobs, ...] = ()  # one for each id where sampling asked for them
    finish: Finish | None = None  # of the last event only


@dataclass(frozen=True, slots=True)
class Failure:
    """The last event of a request that did not finish."""

    error: ProteusError

    def __post_init__(self) -> None:
        # Its frames hold logits and the whole request, for as long as a client keeps this.
        self.error.__traceback__ = None


Emit = Callable[[Event | Failure], None]


class Engine(Protocol):
    def submit(self, request: GenerationRequest, emit: Emit) -> None:
        """Queue the request. Raises QueueFull, PromptTooLong, InvalidRequest or Unavailable before anything is held.

        `emit` is called from the engine's thread and must not block; after an Event with `finish`, or a Failure, it is
        not called again. An `emit` that raises cancels its own request.
        """

    def cancel(self, request_key: bytes) -> None:
        """Stop the request at the next iteration. An unknown key is remembered, for a stop can overtake its request."""

    def close(self) -> None:
        """End the engine; what is in flight fails with Unavailable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLimits:
    """What a prompt must fit; facts of the export, and the context of the deployment."""

    vocab_size: int
    hidden_size: int
    context_tokens: int  # prompt and answer
    image_token_id: int

    def check(self, request: GenerationRequest) -> None:
        """Raises PromptTooLong or InvalidRequest; nothing is computed for a prompt that fails here."""
        ids = request.input_ids
        if ids.ndim != 1 or len(ids) == 0 or not np.issubdtype(ids.dtype, np.integer):
            raise InvalidRequest(f"input_ids has shape {list(ids.shape)}", limit="[1 or more] ids", fix="send a prompt")
        if len(ids) + 1 > self.context_tokens:
            num_visual = sum(length for _, length in request.visual_spans)
            raise PromptTooLong(
                f"the prompt has {len(ids):,} tokens, {num_visual:,} of them visual",
                limit=f"[llm] context_tokens = {self.context_tokens:,}, one of them for the answer",
                fix="send less text or fewer pictures",
            )
        if ids.min() < 0 or ids.max() >= self.vocab_size:
            raise InvalidRequest(
                "input_ids holds an id outside the vocabulary",
                limit=f"0 to {self.vocab_size - 1:,}",
                fix="use the checkpoint's tokenizer",
            )
        self._check_spans(request)
        self._check_rows(request)
        self._check_keys(request)

    def _check_spans(self, request: GenerationRequest) -> None:
        ids, end = request.input_ids, 0
        for start, length in request.visual_spans:
            if start < end or length < 1 or start + length > len(ids):
                raise InvalidRequest(
                    f"visual span ({start}, {length}) is empty, out of order, overlapping or outside the prompt",
                    limit=f"ascending (start, length) within {len(ids)} tokens",
                    fix="send the spans of the expanded placeholders",
                )
            end = start + length
        covered = np.zeros(len(ids), dtype=bool)
        for start, length in request.visual_spans:
            covered[start : start + length] = True
        if not np.array_equal(covered, ids == self.image_token_id):
            raise InvalidRequest(
                "visual_spans and the placeholders in input_ids differ",
                limit=f"placeholder id {self.image_token_id} exactly inside the spans",
                fix="expand one placeholder per picture",
            )

    def _check_rows(self, request: GenerationRequest) -> None:
        rows = request.visual_tokens
        num_rows = sum(length for _, length in request.visual_spans)
        shape = (0, self.hidden_size) if rows is None else rows.shape
        if shape != (num_rows, self.hidden_size):
            raise InvalidRequest(
                f"visual_tokens has shape {list(shape)}",
                limit=f"[{num_rows}, {self.hidden_size}]: one row for each placeholder",
                fix="send the rows of every picture, in order",
            )
        if rows is not None and not np.isfinite(rows).all():
            raise InvalidRequest("visual_tokens holds a value that is not finite", fix="send another picture")

    def _check_keys(self, request: GenerationRequest) -> None:
        keys, num_spans = request.media_keys, len(request.visual_spans)
        if keys and (len(keys) != num_spans or not all(keys)):
            raise InvalidRequest(
                f"media_keys has {len(keys):,} keys, {keys.count(b''):,} of them empty",
                limit=f"a key for each of {num_spans:,} visual spans, or none at all",
                fix="send as many",
            )
