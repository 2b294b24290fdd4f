"""One request on its way through the engine of ONNX Runtime: its prompt, and how its next token is chosen."""

from __future__ import annotations

import logging

import numpy as np
import numpy.typing as npt

from proteus.errors import BrokenModel
from proteus.language.answer import Answer
from proteus.language.generation import Emit, Event, GenerationRequest, PromptLimits
from proteus.language.health import Health
from proteus.language.prefix import Chain
from proteus.language.sample import Sampler
from proteus.language.stream import Detokenizer

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


class LiveSequence(Answer):
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
        super().__init__(request, emit, detokenizer=detokenizer, eos_token_ids=eos_token_ids, limits=limits)
        self.prompt = Prompt(request, links)
        self.last_token = -1
        self.gave_way = False  # its last chunk, to text
        self._sampler = Sampler(
            request.sampling,
            prompt_ids=request.input_ids[request.input_ids != limits.image_token_id],
            stop_ids=self.stop_ids,
            vocab_size=limits.vocab_size,
        )
        self._health = Health()
        self._wants_logprobs = request.sampling.logprobs

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
        return self.say(token_id, logprobs)
