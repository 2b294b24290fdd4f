"""Clients of an engine in one process: they collect the events of a request, and can stop in the middle."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from proteus.language.engine import Event, Failure, Finish, GenerationRequest, OnnxEngine
from proteus.language.generation import Scheduling
from proteus.language.sampling import Sampling
from proteus.limits import Llm

CONTEXT = 128
SLOTS = 3
MAX_QUEUE = 64
PROMPT = [1, 40, 41, 42, 43]
OTHERS = ([1, 50, 51], [1, 60, 61, 62, 63, 64, 65, 66, 67], [1, 70], [1, *range(80, 120)])
LONG = 60  # tokens of an answer that is still going on when something happens to it
PATIENCE_S = 60.0  # no test waits so long unless something hangs


def engine_limits(
    *,
    slots: int = SLOTS,
    context_tokens: int = CONTEXT,
    max_queue: int = MAX_QUEUE,
    prefix_bytes: int = 1 << 20,
    **schedule: Any,
) -> Llm:
    """Small chunks and blocks, so that short prompts have several."""
    knobs = {
        "policy": "auto",
        "iteration_tokens": 24,
        "max_media_prefills": 1,
        "text_slots": max(1, slots // 3),
        "max_media_slots": max(1, slots - 1),
        "media_aging_ms": 50,
        "batch_aging_ms": 200,
    }
    if slots == 1:  # `pools` would leave one kind none
        knobs["policy"] = "ratio"
    return Llm.model_validate(
        {
            "slots": slots,
            "context_tokens": context_tokens,
            "max_queue": max_queue,
            "threads": 1,
            "schedule": {**knobs, **schedule},
            "prefix_cache": {"block_tokens": 8, "max_bytes": prefix_bytes, "max_age_s": 600.0},
        }
    )


@dataclass
class Client:
    """Submits one request; `on_event` runs in the engine's thread before the event is noted."""

    engine: OnnxEngine
    input_ids: Sequence[int]
    sampling: Sampling = field(default_factory=Sampling)
    visual_tokens: np.ndarray[Any, np.dtype[np.float32]] | None = None
    visual_spans: tuple[tuple[int, int], ...] = ()
    scheduling: Scheduling = field(default_factory=Scheduling)
    media_keys: tuple[bytes, ...] = ()
    key: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    on_event: Callable[[Event | Failure], None] = lambda event: None
    events: list[Event | Failure] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def submit(self) -> Client:
        request = GenerationRequest(
            request_key=self.key,
            input_ids=np.array(self.input_ids, dtype=np.int32),
            visual_tokens=self.visual_tokens,
            visual_spans=self.visual_spans,
            media_keys=self.media_keys,
            sampling=self.sampling,
            scheduling=self.scheduling,
        )
        self.engine.submit(request, self._take)
        return self

    def cancel(self) -> None:
        self.engine.cancel(self.key)

    def wait(self) -> Client:
        assert self.ended.wait(PATIENCE_S), f"no end after {len(self.events)} events"
        return self

    def _take(self, event: Event | Failure) -> None:
        assert not self.ended.is_set(), "an event after the last one"
        self.on_event(event)
        self.events.append(event)
        if isinstance(event, Failure) or event.finish is not None:
            self.ended.set()

    @property
    def ids(self) -> list[int]:
        return [number for event in self.events if isinstance(event, Event) for number in event.token_ids]

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, Event))

    @property
    def finish(self) -> Finish:
        last = self.events[-1]
        assert isinstance(last, Event), last
        assert last.finish is not None
        return last.finish

    @property
    def failure(self) -> Failure:
        last = self.events[-1]
        assert isinstance(last, Failure)
        return last


def ask(engine: OnnxEngine, input_ids: Sequence[int], **sampling: Any) -> Client:
    """The whole answer."""
    return Client(engine, input_ids, Sampling(**sampling)).submit().wait()


class Gate:
    """An `on_event` that holds the engine's thread, as a slow client would, until opened."""

    def __init__(self, after: int = 1) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        self._left = after

    def __call__(self, event: Event | Failure) -> None:
        self._left -= 1
        if self._left == 0:
            self.reached.set()
            assert self.opened.wait(PATIENCE_S)


def assert_empty(engine: OnnxEngine) -> None:
    engine.check()
    assert engine.num_in_flight == 0
