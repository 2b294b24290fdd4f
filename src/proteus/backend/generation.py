"""Requests to `llm` <-> the engine's own nouns; a client chose every value, so each is checked."""

from __future__ import annotations

import json
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from proteus.backend.fleet import LlmEnd, LlmEvent
from proteus.backend.guard import Responses, known, responding
from proteus.backend.mailbox import Letter, Mailbox, pack
from proteus.backend.scheduling import read_scheduling
from proteus.backend.tensors import Array, from_bytes, read, read_bytes
from proteus.contract import REQUEST_KEY_BYTES
from proteus.errors import InvalidRequest, ProteusError
from proteus.language.generation import Engine, Event, Failure, GenerationRequest, Spans
from proteus.language.sampling import Sampling

CANCEL_POLL_S = 0.1
Posted = tuple[bytes, Event | Failure]  # with the request's key
LEFT_S = 60.0  # a door with an open request collects every second
COLLECT_S = 1.0  # a collector waits no longer for an event; that it was answered says that this model lives


class EnginePort:
    """Serves requests of four kinds: generate with events as responses, generate into a mailbox, collect, stop."""

    def __init__(self, engine: Engine, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._engine, self._clock_s = engine, clock_s
        self._mailboxes: OrderedDict[bytes, tuple[float, Mailbox[Posted]]] = OrderedDict()  # last used at the end
        self._collectors = ThreadPoolExecutor(4, thread_name_prefix="collect")

    def serve(self, request: Any) -> None:
        """Begin to answer one request; every answer and error goes to the request's own responses."""
        with responding(request) as responses:
            if _flag(request, "stop"):
                self._engine.cancel(_key(request, "request_key"))
                responses.close()
            elif _flag(request, "collect"):
                mailbox = self._mailbox(_key(request, "mailbox"))
                self._collectors.submit(_collect, responses, mailbox)
            elif (mailbox_key := read_bytes(request, "mailbox")) is not None:
                generation = read_generation(request)
                self._engine.submit(generation, _posting(generation.request_key, self._mailbox(mailbox_key)))
                responses.close()
            else:
                generation = read_generation(request)
                cancel = partial(self._engine.cancel, generation.request_key)
                self._engine.submit(generation, Emitter(responses, cancel))

    def close(self) -> None:
        self._engine.close()
        for _, mailbox in self._mailboxes.values():
            mailbox.close()
        self._collectors.shutdown()

    def _mailbox(self, key: bytes) -> Mailbox[Posted]:
        """The mailbox of that name, new or not; those that nobody asks for any more are dropped."""
        now_s = self._clock_s()
        _, mailbox = self._mailboxes.pop(key, (now_s, Mailbox()))
        self._mailboxes[key] = now_s, mailbox
        while next(iter(self._mailboxes.values()))[0] < now_s - LEFT_S:
            self._mailboxes.popitem(last=False)
        return mailbox


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


def _collect(responses: Responses, mailbox: Mailbox[Posted]) -> None:
    try:
        letters = [Letter(request_key, _content(event)) for request_key, event in mailbox.collect(COLLECT_S)]
        responses.send({"events": from_bytes(pack(letters))}, final=True)
    except Exception as error:
        responses.fail(known(error))


def _posting(request_key: bytes, mailbox: Mailbox[Posted]) -> Callable[[Event | Failure], None]:
    return lambda event: mailbox.put((request_key, event))


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
        outputs["stage_us"] = np.array([finish.queue_us, finish.prefill_us, finish.decode_us], dtype=np.int64)
    return outputs


def _flag(request: Any, name: str) -> bool:
    value = read(request, name)
    return value is not None and bool(value.reshape(-1)[0])


def _key(request: Any, name: str) -> bytes:
    key = read_bytes(request, name)
    if key is None:
        raise InvalidRequest(f"{name} is missing", fix=f"send the {name} with stop or collect")
    return key
