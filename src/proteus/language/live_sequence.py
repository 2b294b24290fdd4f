"""One request on its way through the engine: what it has said so far, and what it tells its client."""

from __future__ import annotations

import logging
import time

import numpy as np
import numpy.typing as npt

from proteus.language.generation import Emit, Event, Failure, Finish, FinishReason, GenerationRequest
from proteus.language.sample import Sampler
from proteus.language.stream import Detokenizer, StopStrings

log = logging.getLogger(__name__)


class LiveSequence:
    """Used by the engine's thread only, once submitted."""

    def __init__(
        self,
        request: GenerationRequest,
        emit: Emit,
        *,
        detokenizer: Detokenizer,
        eos_token_ids: frozenset[int],
        context_tokens: int,
        vocab_size: int,
    ) -> None:
        sampling = request.sampling
        self.request = request
        self.last_token = -1
        self.num_tokens = 0  # of the answer
        self._emit = emit
        self._max_tokens = min(sampling.max_tokens, context_tokens - len(request.input_ids))
        self._stop_ids = eos_token_ids.union(sampling.stop_token_ids)
        self.sampler = Sampler(sampling, prompt_ids=_text_ids(request), stop_ids=self._stop_ids, vocab_size=vocab_size)
        self._text = detokenizer.stream()
        self._stops = StopStrings(sampling.stop)
        self._submitted_ns = time.monotonic_ns()
        self._admitted_ns = self._first_token_ns = 0  # 0: not yet

    @property
    def num_in_slot(self) -> int:
        """Tokens whose keys and values are in the slot: all but the last one chosen."""
        return len(self.request.input_ids) + self.num_tokens - 1

    def note_admitted(self) -> None:
        self._admitted_ns = time.monotonic_ns()

    def accept(self, token_id: int) -> Event:
        """Take the next token; what the client is told, with `finish` where a stop or the length ends the answer."""
        self.num_tokens += 1
        self.last_token = token_id
        if self.num_tokens == 1:
            self._first_token_ns = time.monotonic_ns()
        if token_id in self._stop_ids:
            return self._last_event("stop", (token_id,), "")
        text = self._stops.push(self._text.push(token_id))
        if self._stops.found:
            return self._last_event("stop", (token_id,), text)
        if self.num_tokens >= self._max_tokens:
            return self._last_event("length", (token_id,), text)
        return Event(token_ids=(token_id,), text=text)

    def cancelled(self) -> Event:
        return self._last_event("cancelled", (), "")

    def send(self, event: Event | Failure) -> bool:
        """Whether the client took it; where not, there is nobody left to tell."""
        try:
            self._emit(event)
        except Exception:
            log.exception("a client's emit raised: its request is cancelled")
            return False
        return True

    def _last_event(self, reason: FinishReason, token_ids: tuple[int, ...], text: str) -> Event:
        """With the text that was held back."""
        text += self._stops.push(self._text.flush())
        text += self._stops.flush()
        if self._stops.found and reason == "length":
            reason = "stop"
        return Event(token_ids=token_ids, text=text, finish=self._timed(reason))

    def _timed(self, reason: FinishReason) -> Finish:
        now = time.monotonic_ns()
        admitted_ns = self._admitted_ns or now
        first_token_ns = self._first_token_ns or now
        return Finish(
            reason=reason,
            cached_tokens=0,
            queue_us=(admitted_ns - self._submitted_ns) // 1000,
            prefill_us=(first_token_ns - admitted_ns) // 1000,
            decode_us=(now - first_token_ns) // 1000,
        )


def _text_ids(request: GenerationRequest) -> npt.NDArray[np.int32]:
    """The prompt without the placeholders of its pictures."""
    is_text = np.ones(len(request.input_ids), dtype=bool)
    for start, length in request.visual_spans:
        is_text[start : start + length] = False
    text_ids: npt.NDArray[np.int32] = request.input_ids[is_text]
    return text_ids
