"""Tensors of an `llm` request <-> the engine's own nouns; a client chose every value, so each is checked."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from proteus.backend.guard import Responses, known
from proteus.backend.tensors import Array, from_bytes, read, read_bytes
from proteus.contract import REQUEST_KEY_BYTES
from proteus.errors import InvalidRequest
from proteus.language.generation import Event, Failure, GenerationRequest
from proteus.language.sampling import Sampling

CANCEL_POLL_S = 0.1


def read_stop(request: Any) -> bytes | None:
    """Key of the request to stop, when this is a `stop` request; raises InvalidRequest without a key."""
    stop = read(request, "stop")
    if stop is None or not bool(stop.reshape(-1)[0]):
        return None
    key = read_bytes(request, "request_key")
    if key is None:
        raise InvalidRequest("stop without request_key", fix="send the request_key of the request to stop")
    return key


def read_generation(request: Any) -> GenerationRequest:
    """Raises InvalidRequest."""
    input_ids = read(request, "input_ids")
    if input_ids is None:
        raise InvalidRequest("input_ids is missing", fix="send the ids of the prompt")
    visual_tokens, spans = read(request, "visual_tokens"), read(request, "visual_spans")
    return GenerationRequest(
        request_key=read_bytes(request, "request_key") or secrets.token_bytes(REQUEST_KEY_BYTES),
        input_ids=input_ids,
        visual_tokens=visual_tokens,
        visual_spans=() if spans is None else tuple((int(start), int(length)) for start, length in spans),
        sampling=Sampling.from_json(read_bytes(request, "sampling") or b"{}"),
    )


class Emitter:
    """Where the engine's events go: one response each, and from time to time a look whether anybody listens."""

    def __init__(self, responses: Responses, cancel: Callable[[], None]) -> None:
        self._responses = responses
        self._cancel = cancel
        self._poll_at_s = time.monotonic() + CANCEL_POLL_S

    def __call__(self, event: Event | Failure) -> None:
        if isinstance(event, Failure):
            self._responses.fail(known(event.error))
            return
        self._responses.send(_outputs(event), final=event.finish is not None)
        if event.finish is None and time.monotonic() >= self._poll_at_s:
            self._poll_at_s = time.monotonic() + CANCEL_POLL_S
            if self._responses.is_cancelled():
                self._cancel()


def _outputs(event: Event) -> dict[str, Array]:
    outputs: dict[str, Array] = {
        "token_ids": np.array(event.token_ids, dtype=np.int32),
        "text": from_bytes(event.text.encode()),
    }
    if event.finish is not None:
        finish = event.finish
        outputs["finish_reason"] = from_bytes(finish.reason.encode())
        outputs["stage_us"] = np.array([finish.queue_us, finish.prefill_us, finish.decode_us], dtype=np.int64)
    return outputs
