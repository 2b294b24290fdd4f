"""Who waits: in which order, until when, and how many at once; deadlines and the watchdog as a client meets them."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proteus.errors import DeadlineExceeded, QueueFull, Stalled
from proteus.language.engine import Event, Failure, OnnxEngine
from proteus.language.generation import Scheduling
from proteus.language.sampling import Sampling
from proteus.language.tokenizer import load_tokenizer
from proteus.limits import LatencyClass
from tests.language.clients import LONG, PROMPT, Client, Gate, ask, assert_empty, engine_limits
from tests.language.prompts import Prompt, spell

MANY = 10_000
HOUR_MS = 3_600_000
DEADLINE_S = 1.0  # long enough to be accepted, short enough to wait for


@pytest.fixture
def narrow(start_engine: Any, llm_folder: Path) -> Iterator[OnnxEngine]:
    """One slot, and classes that never age in the time of a test."""
    engine = start_engine(llm_folder, slots=1, media_aging_ms=HOUR_MS, batch_aging_ms=2 * HOUR_MS, prefix_bytes=0)
    yield engine
    assert_empty(engine)
    engine.close()


class Line:
    """A gate in front of the engine, and who ended behind it in which order."""

    def __init__(self, engine: OnnxEngine) -> None:
        self._engine, self._gate = engine, Gate()
        self.ended: list[str] = []
        self.clients: dict[str, Client] = {}
        self._first = Client(engine, PROMPT, Sampling(max_tokens=2), on_event=self._gate).submit()
        assert self._gate.reached.wait(60)

    def add(self, name: str, prompt: Prompt, sampling: Sampling, **scheduling: Any) -> None:
        def on_event(event: Event | Failure) -> None:
            if isinstance(event, Failure) or event.finish is not None:
                self.ended.append(name)

        client = prompt.client(self._engine, sampling, scheduling=Scheduling(**scheduling), on_event=on_event)
        self.clients[name] = client.submit()

    def run(self) -> list[str]:
        self._gate.opened.set()
        self._first.wait()
        for client in self.clients.values():
            client.wait()
        return self.ended


def test_text_goes_before_media_and_media_before_batch_whoever_came_first(narrow: OnnxEngine) -> None:
    line = Line(narrow)
    classes: list[LatencyClass] = ["batch", "media", "text", "batch", "text", "media"]
    for number, name in enumerate(classes):
        prompt = spell(1, "A", 2) if name == "media" else spell(9)
        line.add(f"{name} {number}", prompt, Sampling(max_tokens=3), latency_class=name)
    assert line.run() == ["text 2", "text 4", "media 1", "media 5", "batch 0", "batch 3"]


def test_fifo_goes_by_arrival_whatever_class(start_engine: Any, llm_folder: Path) -> None:
    engine = start_engine(llm_folder, slots=1, policy="fifo")
    line = Line(engine)
    classes: list[LatencyClass] = ["batch", "media", "text", "batch", "text"]
    for number, name in enumerate(classes):
        line.add(str(number), spell(9, "A"), Sampling(max_tokens=2), latency_class=name)
    assert line.run() == ["0", "1", "2", "3", "4"]
    engine.close()


def test_a_tenant_with_many_requests_does_not_hold_up_one_with_few(narrow: OnnxEngine) -> None:
    line = Line(narrow)
    for number in range(12):
        line.add(f"many {number}", spell(9), Sampling(max_tokens=3), tenant="many")
    line.add("few", spell(9), Sampling(max_tokens=3), tenant="few")
    assert line.run().index("few") <= 2


@pytest.mark.parametrize("name", ["batch", "media"])
def test_whoever_waits_gets_a_turn_though_text_never_stops_coming(
    start_engine: Any, llm_folder: Path, name: LatencyClass
) -> None:
    """Each of four texts that ends is followed by two, up to what the queue takes, until the one that waits is done."""
    engine = start_engine(llm_folder, slots=2, media_aging_ms=40, batch_aging_ms=80, max_queue=12)
    prompt = spell(1, "A", 2) if name == "media" else spell(9)
    waiting = prompt.client(engine, Sampling(max_tokens=2), scheduling=Scheduling(latency_class=name))
    texts: list[Client] = []

    def submit_text() -> None:
        client = spell(9).client(engine, Sampling(max_tokens=2), on_event=on_event)
        try:
            texts.append(client.submit())
        except QueueFull:
            assert engine.num_in_flight > 10

    def on_event(event: Event | Failure) -> None:
        if isinstance(event, Event) and event.finish is not None and not waiting.ended.is_set():
            submit_text()
            submit_text()

    for _ in range(4):
        submit_text()
    waiting.submit().wait()
    assert len(waiting.ids) == 2
    for client in texts:
        client.wait()
    assert len(texts) > 4
    assert_empty(engine)
    engine.close()


def test_a_request_that_waits_past_its_deadline_fails_and_one_that_has_a_slot_does_not(narrow: OnnxEngine) -> None:
    gate = Gate(after=3)
    soon_s = time.monotonic() + DEADLINE_S
    running = Client(
        narrow, PROMPT, Sampling(max_tokens=9), on_event=gate, scheduling=Scheduling(deadline_s=soon_s)
    ).submit()
    assert gate.reached.wait(60)
    late = [
        Client(narrow, PROMPT, scheduling=Scheduling(deadline_s=soon_s, latency_class=name)).submit()
        for name in ("text", "media", "batch")
    ]
    patient = Client(narrow, PROMPT, Sampling(max_tokens=3), scheduling=Scheduling(deadline_s=1e12)).submit()
    while time.monotonic() <= soon_s:
        running.ended.wait(soon_s - time.monotonic() + 0.001)
    gate.opened.set()
    for client in late:
        assert isinstance(client.wait().failure.error, DeadlineExceeded)
        assert "no slot after" in str(client.failure.error)
        assert client.ids == []
    assert len(running.wait().ids) == 9
    assert len(patient.wait().ids) == 3
    counts = narrow.figures().counts
    assert counts.outcomes == {DeadlineExceeded.code: 3, "length": 2}
    assert (counts.wasted_prefill_tokens, counts.wasted_decode_tokens) == (0, 0)


def test_a_deadline_that_is_over_is_refused_on_the_spot(narrow: OnnxEngine) -> None:
    with pytest.raises(DeadlineExceeded):
        Client(narrow, PROMPT, scheduling=Scheduling(deadline_s=time.monotonic())).submit()


def test_a_request_that_can_never_have_a_slot_fails_at_once_and_says_why(
    llm_folder: Path, tiny_checkpoint: Path
) -> None:
    """Limits that no deployment file may hold: a policy without a slot for media. Nothing is computed over and over."""
    limits = engine_limits(policy="ratio", prefix_bytes=0)
    schedule = limits.schedule.model_copy(update={"max_media_slots": 0})
    limits = limits.model_copy(update={"schedule": schedule})
    engine = OnnxEngine(llm_folder, load_tokenizer(tiny_checkpoint), limits, revision="tiny")
    before = engine.figures().counts.iterations
    media = [spell(1, "A", 2).client(engine, Sampling(max_tokens=3)).submit() for _ in range(3)]
    for client in media:
        assert isinstance(client.wait().failure.error, Stalled)
        assert "policy ratio: 0 of 3 slots for media" in str(client.failure.error)
    assert engine.figures().counts.iterations <= before + 6
    assert ask(engine, PROMPT, max_tokens=3).finish.reason == "length"
    assert engine.figures().counts.outcomes == {Stalled.code: 3, "length": 1}
    assert_empty(engine)
    engine.close()


def test_ten_thousand_wait_and_each_gets_its_own_answer_in_its_turn(start_engine: Any, llm_folder: Path) -> None:
    """The engine's own order is that of arrival within a class; a tenth leaves while it waits, and nobody notices."""
    engine = start_engine(llm_folder, slots=8, max_queue=MANY, policy="ratio")
    prompts = [spell(2 + number % 7, [40 + number]) for number in range(300)]
    expected = [ask(engine, prompt.ids, max_tokens=1).ids for prompt in prompts]
    gate, ended = Gate(), list[int]()
    first = Client(engine, PROMPT, Sampling(max_tokens=LONG), on_event=gate).submit()
    assert gate.reached.wait(60)
    clients = [
        prompts[number % 300].client(
            engine, Sampling(max_tokens=1), on_event=lambda event, number=number: ended.append(number)
        )
        for number in range(MANY)
    ]
    for client in clients:
        client.submit()
    engine.check()
    assert sum(engine.figures().scheduler.waiting.values()) == MANY
    leaving = set(random.Random(0).sample(range(MANY), MANY // 10))
    for number in leaving:
        clients[number].cancel()
    gate.opened.set()
    for client in clients:
        client.wait()
    first.wait()
    stayed = [number for number in ended if number not in leaving]
    assert stayed == sorted(stayed)
    assert len(stayed) == MANY - len(leaving)
    assert [clients[number].ids for number in stayed] == [expected[number % 300] for number in stayed]
    assert {clients[number].finish.reason for number in leaving} == {"cancelled"}
    assert_empty(engine)
    engine.close()
