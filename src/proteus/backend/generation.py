"""Requests to `llm` <-> the engine's own nouns; a client chose every value, so each is checked."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from proteus.backend.fleet import LlmEnd, LlmEvent
from proteus.backend.guard import known
from proteus.backend.letters import pack
from proteus.backend.mailbox import Letter
from proteus.backend.scheduling import read_scheduling
from proteus.backend.tensors import Array, from_bytes, read, read_bytes
from proteus.contract import REQUEST_KEY_BYTES
from proteus.errors import InvalidRequest, ProteusError
from proteus.language.generation import Event, Failure, GenerationRequest, Spans
from proteus.language.sampling import Sampling


class LlmWire:
    """As `port.Wire` wants it."""

    def read(self, request: Any) -> GenerationRequest:
        return read_generation(request)

    def error_of(self, news: Event | Failure) -> ProteusError | None:
        return news.error if isinstance(news, Failure) else None

    def is_last(self, news: Event | Failure) -> bool:
        return isinstance(news, Failure) or news.finish is not None

    def outputs(self, news: Event | Failure) -> dict[str, Array]:
        return {} if isinstance(news, Failure) else _outputs(news)

    def packed(self, posted: Sequence[tuple[bytes, Event | Failure]]) -> dict[str, Array]:
        letters = [Letter(request_key, _content(news)) for request_key, news in posted]
        return {"events": from_bytes(pack(letters))}


def read_generation(request: Any) -> GenerationRequest:
    """Raises InvalidRequest."""
    input_ids = read(request, "input_ids")
    if input_ids is None:
        raise InvalidRequest("input_ids is missing", fix="send the ids of the prompt")
    spans = _spans(request)
    return GenerationRequest(
        request_key=read_bytes(request, "request_key") or secrets.token_bytes(REQUEST_KEY_BYTES),
        input_ids=input_ids,
        visual_tokens=read(request, "visual_tokens"),
        visual_spans=spans,
        media_keys=_media_keys(request, len(spans)),
        sampling=Sampling.from_json(read_bytes(request, "sampling") or b"{}"),
        scheduling=read_scheduling(read_bytes(request, "scheduling") or b"{}", time.monotonic()),
    )


def _spans(request: Any) -> Spans:
    spans = read(request, "visual_spans")
    return () if spans is None else tuple((int(start), int(length)) for start, length in spans)


def _media_keys(request: Any, num_spans: int) -> tuple[bytes, ...]:
    """One for each span, or none at all."""
    keys = read(request, "media_keys")
    if keys is None:
        return ()
    if len(keys) != num_spans:
        raise InvalidRequest(
            f"media_keys has {len(keys):,} keys",
            limit=f"one for each of {num_spans:,} visual spans",
            fix="send as many",
        )
    return tuple(key.tobytes() for key in keys)


def _content(event: Event | Failure) -> LlmEvent | ProteusError:
    return known(event.error) if isinstance(event, Failure) else _llm_event(event)


def _llm_event(event: Event) -> LlmEvent:
    end = None
    if (finish := event.finish) is not None:
        end = LlmEnd(
            finish_reason=finish.reason,
            cached_tokens=finish.cached_tokens,
            queue_us=finish.queue_us,
            prefill_us=finish.prefill_us,
            decode_us=finish.decode_us,
            saved_us=finish.saved_us,
        )
    return LlmEvent(text=event.text, token_ids=event.token_ids, logprobs=event.logprobs, end=end)


def _outputs(event: Event) -> dict[str, Array]:
    outputs: dict[str, Array] = {
        "token_ids": np.array(event.token_ids, dtype=np.int32),
        "text": from_bytes(event.text.encode()),
    }
    if event.logprobs:
        outputs["logprobs"] = from_bytes(json.dumps([asdict(entry) for entry in event.logprobs]).encode())
    if event.finish is not None:
        finish = event.finish
        outputs["cached_tokens"] = np.array([finish.cached_tokens], dtype=np.int32)
        outputs["finish_reason"] = from_bytes(finish.reason.encode())
        outputs["saved_us"] = np.array([finish.saved_us], dtype=np.int64)
        outputs["stage_us"] = np.array([finish.queue_us, finish.prefill_us, finish.decode_us], dtype=np.int64)
    return outputs
