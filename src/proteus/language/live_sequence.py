"""One request on its way through the engine: its prompt, what it has said so far, and what it tells its client."""

from __future__ import annotations

import logging
import time

import numpy as np
import numpy.typing as npt

from proteus.errors import BrokenModel
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
from proteus.language.health import Health
from proteus.language.prefix import Chain
from proteus.language.sample import Sampler
from proteus.language.stream import Detokenizer, StopStrings
from proteus.language.task import Task

log = logging.getLogger(__name__)
Floats = npt.NDArray[np.float32]


class Prompt:
    """What is to be computed, and under which links its blocks are kept.

    T tokens, R rows of pictures, D width.
    """

    def __init__(self, request: GenerationRequest, links: Chain) -> None:
        self.ids = request.input_ids.astype(np.int64)  # (T,)
        self.links = links  # of its full blocks
        places = [np.arange(start, start + length) for start, length in request.visual_spans]
        self._places = np.concatenate(places) if places else np.zeros(0, dtype=np.int64)  # (R,), ascending
        self._rows = request.visual_tokens  # (R, D)

    def piece(self, start: int, stop: int, width: int) -> tuple[npt.NDArray[np.int64], Floats, npt.NDArray[np.int64]]:
        """Ids from `start` to `stop`, the rows of pictures among them, and their places in the piece."""
        first, last = np.searchsorted(self._places, (start, stop))
        rows = np.zeros((0, width), dtype=np.float32) if self._rows is None else self._rows[first:last]
        return self.ids[start:stop], rows, self._places[first:last] - start

    def forget_rows(self) -> None:
        """Once all is computed; the rows of a picture are the largest thing a request holds."""
        self._rows = None


class LiveSequence:
    """Used by the engine's thread only, once submitted. Its `task` is what the scheduler knows of it."""

    def __init__(
        self,
        request: GenerationRequest,
        emit: Emit,
        *,
        links: Chain,
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
        self.prompt = Prompt(request, links)
        self.cached_tokens = 0
        self._saved_s = 0.0
        self.last_token = -1
        self.gave_way = False  # its last chunk, to text
        self._stop_ids = eos_token_ids.union(sampling.stop_token_ids)
        self._sampler = Sampler(
            sampling,
            prompt_ids=request.input_ids[request.input_ids != limits.image_token_id],
            stop_ids=self._stop_ids,
            vocab_size=limits.vocab_size,
        )
        self._health = Health()
        self._wants_logprobs = sampling.logprobs
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

    def next_event(self, logits: Floats, row: int, highest: int) -> Event:
        """Choose the next token from a row of logits (B, V), whose argmax is given; what the client is told of it.

        With `finish` where a stop or the length ends the answer. Raises BrokenModel, or InvalidRequest where sampling
        leaves no token.
        """
        peak = logits.item(row, highest)
        lowest = float(logits[row].min()) if self._health.wants_lowest else None
        if (broken := self._health.check(highest, peak, lowest)) is not None:
            log.error("%s", broken)
            raise BrokenModel
        token_id = highest if self._sampler.is_plain else self._sampler.choose(logits[row], highest, peak)
        self.last_token = token_id
        logprobs = (self._sampler.logprobs(logits[row], token_id),) if self._wants_logprobs else ()
        self.num_tokens += 1
        if self.num_tokens == 1:
            self._first_token_ns = time.monotonic_ns()
        if token_id in self._stop_ids:
            return self._last_event("stop", "", token_id, logprobs)
        text = self._text.push(token_id)
        if self._has_stops:
            text = self._stops.push(text)
            if self._stops.found:
                return self._last_event("stop", text, token_id, logprobs)
        if self.num_tokens >= self.task.max_tokens:
            return self._last_event("length", text, token_id, logprobs)
        return Event((token_id,), text, logprobs)

    def cancelled(self) -> Event:
        return self._last_event("cancelled", "")

    def send(self, event: Event | Failure) -> bool:
        """Whether the client took it; where not, there is nobody left to tell."""
        try:
            self._emit(event)
        except Exception:
            log.exception("a client's emit raised: its request is cancelled")
            return False
        return True

    def _last_event(
        self, reason: FinishReason, text: str, token_id: int | None = None, logprobs: tuple[TokenLogprobs, ...] = ()
    ) -> Event:
        """With the text that was held back."""
        text += self._stops.push(self._text.flush())
        text += self._stops.flush()
        if self._stops.found and reason == "length":
            reason = "stop"
        token_ids = () if token_id is None else (token_id,)
        return Event(token_ids=token_ids, text=text, logprobs=logprobs, finish=self._timed(reason))

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
