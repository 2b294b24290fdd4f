"""Requests to `denoiser` <-> the loop's own nouns; a client chose every value, so each is checked."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from proteus.backend.draw_documents import read_scheduling, read_settings
from proteus.backend.draw_letters import pack
from proteus.backend.guard import known
from proteus.backend.mailbox import Letter
from proteus.backend.tensors import Array, from_bytes, read, read_bytes
from proteus.contract import REQUEST_KEY_BYTES
from proteus.errors import InvalidRequest, ProteusError
from proteus.generation.task import Condition, DrawEvent, DrawFailure, DrawTask


class DrawWire:
    """As `port.Wire` wants it."""

    def read(self, request: Any) -> DrawTask:
        return read_task(request)

    def error_of(self, news: DrawEvent | DrawFailure) -> ProteusError | None:
        return news.error if isinstance(news, DrawFailure) else None

    def is_last(self, news: DrawEvent | DrawFailure) -> bool:
        return isinstance(news, DrawFailure) or news.end is not None

    def outputs(self, news: DrawEvent | DrawFailure) -> dict[str, Array]:
        return {} if isinstance(news, DrawFailure) else _outputs(news)

    def packed(self, posted: Sequence[tuple[bytes, DrawEvent | DrawFailure]]) -> dict[str, Array]:
        document, latents = pack([Letter(request_key, _content(news)) for request_key, news in posted])
        outputs: dict[str, Array] = {"events": from_bytes(document)}
        return {**outputs, "event_latents": latents} if latents.size else outputs


def read_task(request: Any) -> DrawTask:
    """Raises InvalidRequest."""
    prompt = _condition(request, "text_states", "pooled")
    if prompt is None:
        raise InvalidRequest("text_states are missing", fix="send what text_encoder gives for the prompt")
    settings = read_bytes(request, "settings")
    if settings is None:
        raise InvalidRequest("settings are missing", fix="send width_px, height_px, steps, guidance, sampler and seed")
    scheduling = read_scheduling(read_bytes(request, "scheduling") or b"{}", time.monotonic())
    return DrawTask(
        request_key=read_bytes(request, "request_key") or secrets.token_bytes(REQUEST_KEY_BYTES),
        prompt=prompt,
        negative=_condition(request, "negative_states", "negative_pooled"),
        settings=read_settings(settings),
        tenant=scheduling.tenant,
        latency_class=scheduling.latency_class,
        deadline_s=scheduling.deadline_s,
    )


def _condition(request: Any, states_name: str, pooled_name: str) -> Condition | None:
    states = read(request, states_name)
    return None if states is None else Condition(states=states, pooled=read(request, pooled_name))


def _content(news: DrawEvent | DrawFailure) -> DrawEvent | ProteusError:
    return known(news.error) if isinstance(news, DrawFailure) else news


def _outputs(event: DrawEvent) -> dict[str, Array]:
    outputs: dict[str, Array] = {"step": np.array([event.step], dtype=np.int32)}
    if event.clean is not None:
        outputs["latents"] = np.ascontiguousarray(event.clean)
    if event.end is not None:
        outputs["end"] = from_bytes(json.dumps(asdict(event.end)).encode())
    return outputs
