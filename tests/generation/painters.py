"""Clients of a denoise engine in one process: they collect the events of a picture, and can stop in the middle."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from proteus.generation.engine import DenoiseEngine
from proteus.generation.task import Condition, DrawEnd, DrawEvent, DrawFailure, DrawTask, Floats, Settings
from proteus.limits import Denoiser
from tests.generation.denoisers import TOKENS, WIDTH

PATIENCE_S = 60.0  # no test waits so long unless something hangs
MAX_ROWS, LIVE = 8, 4
PLAIN = Settings(width_px=64, height_px=64, steps=6, guidance=3.0, sampler="euler", seed=7)


def engine_limits(*, max_rows: int = MAX_ROWS, live_images: int = LIVE, max_queue: int = 300) -> Denoiser:
    return Denoiser(max_rows=max_rows, live_images=live_images, max_queue=max_queue, aging_ms=200, threads=1)


def condition_of(seed: int) -> Condition:
    """Text states that no encoder made."""
    return Condition(states=np.random.default_rng(seed).standard_normal((TOKENS, WIDTH)).astype(np.float32))


@dataclass
class Painter:
    """Asks for one picture; `on_event` runs in the engine's thread before the event is noted."""

    engine: DenoiseEngine
    settings: Settings = PLAIN
    prompt: Condition = field(default_factory=lambda: condition_of(1))
    negative: Condition | None = field(default_factory=lambda: condition_of(2))
    tenant: str = ""
    deadline_s: float | None = None
    key: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    on_event: Callable[[DrawEvent | DrawFailure], None] = lambda event: None
    events: list[DrawEvent | DrawFailure] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def submit(self) -> Painter:
        task = DrawTask(
            request_key=self.key,
            prompt=self.prompt,
            negative=self.negative,
            settings=self.settings,
            tenant=self.tenant,
            deadline_s=self.deadline_s,
        )
        self.engine.submit(task, self._take)
        return self

    def cancel(self) -> None:
        self.engine.cancel(self.key)

    def wait(self) -> Painter:
        assert self.ended.wait(PATIENCE_S), f"no end after {len(self.events)} events"
        return self

    def _take(self, event: DrawEvent | DrawFailure) -> None:
        assert not self.ended.is_set(), "an event after the last one"
        self.on_event(event)
        self.events.append(event)
        if isinstance(event, DrawFailure) or event.end is not None:
            self.ended.set()

    @property
    def previews(self) -> list[DrawEvent]:
        return [event for event in self.events if isinstance(event, DrawEvent) and event.end is None]

    @property
    def last(self) -> DrawEvent:
        last = self.events[-1]
        assert isinstance(last, DrawEvent), last
        return last

    @property
    def end(self) -> DrawEnd:
        assert self.last.end is not None
        return self.last.end

    @property
    def latent(self) -> Floats:
        assert self.end.reason == "done" and self.last.clean is not None
        return self.last.clean

    @property
    def error(self) -> Exception:
        last = self.events[-1]
        assert isinstance(last, DrawFailure), last
        return last.error


def draw(engine: DenoiseEngine, **settings: Any) -> Painter:
    """A whole picture."""
    return Painter(engine, replace(PLAIN, **settings)).submit().wait()


class Gate:
    """An `on_event` that holds the engine's thread, as a slow client would, until opened."""

    def __init__(self, after: int = 1) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        self._left = after

    def __call__(self, event: DrawEvent | DrawFailure) -> None:
        self._left -= 1
        if self._left == 0:
            self.reached.set()
            assert self.opened.wait(PATIENCE_S)


def held(engine: DenoiseEngine, **settings: Any) -> tuple[Painter, Gate]:
    """A picture that holds the engine's thread with a preview after its first step, until its gate is opened."""
    gate = Gate()
    painter = Painter(engine, replace(PLAIN, preview_every=1, **settings), on_event=gate).submit()
    assert gate.reached.wait(PATIENCE_S)
    return painter, gate


def assert_empty(engine: DenoiseEngine) -> None:
    engine.check()
    assert engine.num_in_flight == 0
    assert engine.figures().values("proteus_draw_live") == {"": 0}
