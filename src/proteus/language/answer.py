"""What one request is told: its text so far, the end of it, and when which part happened; how a token is chosen is not
known here.
"""

from __future__ import annotations

import logging
import time

from proteus.language.generation import (
    Emit,
    Event,
    Failure,
    Finish,
    FinishReason,
    GenerationRequest,
    PromptLimits,
    TokenLogprobs,
)
from proteus.language.stream import Detokenizer, StopStrings
from proteus.language.task import Task

log = logging.getLogger(__name__)


class Answer:
    """Used by the engine's thread only, once submitted. Its `task` is what knows of its place in the queue."""

    def __init__(
        self,
        request: GenerationRequest,
        emit: Emit,
        *,
        detokenizer: Detokenizer,
        eos_token_ids: frozenset[int],
        limits: PromptLimits,
    ) -> None:
        sampling, scheduling = request.sampling, request.scheduling
        num_prompt = len(request.input_ids)
        self.task = Task(
            key=request.request_key,
            latency_class=scheduling.latency_class,
            tenant=scheduling.tenant,
            prompt_tokens=num_prompt,
            visual_tokens=sum(length for _, length in request.visual_spans),
            max_tokens=min(sampling.max_tokens, limits.context_tokens - num_prompt),
            deadline_s=scheduling.deadline_s,
        )
        self.cached_tokens = 0
        self._saved_s = 0.0
        self.stop_ids = eos_token_ids.union(sampling.stop_token_ids)
        self._emit = emit
        self._text = detokenizer.stream()
        self._stops = StopStrings(sampling.stop)
        self._has_stops = bool(sampling.stop)
        self.num_tokens = 0  # of the answer so far
        self._submitted_ns = time.monotonic_ns()
        self._placed_ns = self._first_token_ns = 0  # 0: not yet

    @property
    def computed_tokens(self) -> int:
        """Of the prompt, not taken from the prefix cache."""
        return self.task.prefilled - self.cached_tokens

    def note_cached(self, tokens: int, saved_s: float) -> None:
        """So much of the prompt came from the prefix cache, and computing it would have taken so long."""
        self.cached_tokens += tokens
        self._saved_s += saved_s

    def note_placed(self) -> None:
        """It has a slot from now on."""
        self._placed_ns = time.monotonic_ns()

    def say(self, token_id: int, logprobs: tuple[TokenLogprobs, ...] = ()) -> Event:
        """The next token is chosen; what the client is told of it, with `finish` where a stop or the length ends it."""
        self.num_tokens += 1
        if self.num_tokens == 1:
            self._first_token_ns = time.monotonic_ns()
        if token_id in self.stop_ids:
            return self.ended("stop", "", token_id, logprobs)
        text = self._text.push(token_id)
        if self._has_stops:
            text = self._stops.push(text)
            if self._stops.found:
                return self.ended("stop", text, token_id, logprobs)
        if self.num_tokens >= self.task.max_tokens:
            return self.ended("length", text, token_id, logprobs)
        return Event((token_id,), text, logprobs)

    def ended(
        self,
        reason: FinishReason,
        text: str = "",
        token_id: int | None = None,
        logprobs: tuple[TokenLogprobs, ...] = (),
    ) -> Event:
        """The last event, with the text that was held back."""
        text += self._stops.push(self._text.flush())
        text += self._stops.flush()
        if self._stops.found and reason == "length":
            reason = "stop"
        token_ids = () if token_id is None else (token_id,)
        return Event(token_ids=token_ids, text=text, logprobs=logprobs, finish=self._timed(reason))

    def send(self, event: Event | Failure) -> bool:
        """Whether the client took it; where not, there is nobody left to tell."""
        try:
            self._emit(event)
        except Exception:
            log.exception("a client's emit raised: its request is cancelled")
            return False
        return True

    def _timed(self, reason: FinishReason) -> Finish:
        now = time.monotonic_ns()
        placed_ns = self._placed_ns or now
        first_token_ns = self._first_token_ns or now
        return Finish(
            reason=reason,
            cached_tokens=self.cached_tokens,
            queue_us=(placed_ns - self._submitted_ns) // 1000,
            prefill_us=(first_token_ns - placed_ns) // 1000,
            decode_us=(now - first_token_ns) // 1000,
            saved_us=round(self._saved_s * 1e6),
        )
