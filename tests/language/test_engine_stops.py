"""Stopping a request at any moment: how soon its place is free, what is counted as wasted, and what others notice.

"Within an iteration" is counted by the engine's own figures, in its thread, so nothing here depends on time.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proteus.errors import InvalidRequest, Unavailable
from proteus.language.engine import Event, Failure, OnnxEngine
from proteus.language.sampling import Sampling
from tests.language.clients import LONG, OTHERS, PROMPT, Client, Gate, ask, assert_empty
from tests.language.prompts import spell

CHUNK = 14  # tokens of an iteration
PROMPTS = (spell(1), spell(9), spell(40), spell(3, "A", 30))
LONG_PROMPT = spell(3, "A", 10, "B", 69)  # 100 tokens: eight chunks


@pytest.fixture
def small(start_engine: Any, llm_folder: Path) -> Iterator[OnnxEngine]:
    """Two slots, small chunks."""
    engine = start_engine(llm_folder, slots=2, iteration_tokens=CHUNK, max_queue=16, prefix_bytes=0)
    yield engine
    assert_empty(engine)
    engine.close()


class Stopper:
    """A neighbour that decodes all the while and stops `target` when it has had `at` events itself."""

    def __init__(self, engine: OnnxEngine, target: Client, at: int) -> None:
        self._engine, self._target, self._at = engine, target, at
        self._gate = Gate()
        self.stopped_in = self.ended_in = -1  # iterations
        self.client = Client(engine, PROMPT, Sampling(max_tokens=LONG), on_event=self._on_event)
        target.on_event = self._on_target

    def run(self) -> None:
        self.client.submit()
        assert self._gate.reached.wait(60)
        self._target.submit()
        self._gate.opened.set()
        self.client.wait()
        self._target.wait()

    def _on_event(self, event: Event | Failure) -> None:
        self._gate(event)
        if len(self.client.events) == self._at:
            self._target.cancel()
            self.stopped_in = self._engine.figures().counts.iterations

    def _on_target(self, event: Event | Failure) -> None:
        if isinstance(event, Failure) or event.finish is not None:
            self.ended_in = self._engine.figures().counts.iterations
            assert self._engine.figures().scheduler.kv_tokens == len(PROMPT) + LONG  # its place is free already


@pytest.mark.parametrize("at", range(1, 15))
def test_a_stop_frees_the_place_before_the_next_iteration_wherever_the_request_is(
    small: OnnxEngine, whole: Client, at: int
) -> None:
    """The prompt has eight chunks, one after each event of the neighbour; then comes the answer."""
    target = LONG_PROMPT.client(small, Sampling(max_tokens=20))
    stopper = Stopper(small, target, at)
    stopper.run()
    assert target.finish.reason == "cancelled"
    assert (target.ids == []) == (at < 8)
    assert stopper.ended_in == stopper.stopped_in
    assert stopper.client.ids == whole.ids
    counts = small.figures().counts
    assert counts.wasted_prefill_tokens == counts.prefilled_tokens - len(PROMPT)
    assert counts.wasted_decode_tokens == len(target.ids) == counts.output_tokens - LONG
    assert counts.outcomes == {"cancelled": 1, "length": 1}


def test_a_stop_while_waiting_wastes_nothing_and_passes_the_queue_by(start_engine: Any, llm_folder: Path) -> None:
    engine = start_engine(llm_folder, slots=1)
    waiting = [LONG_PROMPT.client(engine, Sampling(max_tokens=2)) for _ in range(5)]
    stopper = Stopper(engine, waiting[3], at=1)
    for client in (*waiting[:3], waiting[4]):
        client.submit()
        client.cancel()
    stopper.run()
    assert stopper.ended_in == stopper.stopped_in
    counts = engine.figures().counts
    assert (counts.wasted_prefill_tokens, counts.wasted_decode_tokens) == (0, 0)
    assert counts.outcomes == {"cancelled": 5, "length": 1}
    assert_empty(engine)
    engine.close()


def test_tokens_from_the_prefix_cache_are_not_wasted_when_their_request_is_stopped(
    start_engine: Any, llm_folder: Path
) -> None:
    engine = start_engine(llm_folder)
    prompt = spell(60)
    prompt.client(engine, Sampling(max_tokens=1)).submit().wait()
    client = prompt.client(engine, Sampling(max_tokens=9))
    client.on_event = lambda event: client.cancel()
    client.submit().wait()
    counts = engine.figures().counts
    assert client.finish.cached_tokens == 56
    assert (counts.wasted_prefill_tokens, counts.wasted_decode_tokens) == (4, len(client.ids))
    assert counts.wasted_decode_tokens == 1
    engine.close()


@pytest.mark.parametrize("at", [1, 2, LONG // 2, LONG])
def test_a_stop_from_within_an_event_is_the_end_unless_the_answer_ended_first(
    engine: OnnxEngine, whole: Client, at: int
) -> None:
    client = Client(engine, PROMPT, Sampling(max_tokens=LONG))
    client.on_event = lambda event: client.cancel() if len(client.events) == at - 1 else None
    client.submit().wait()
    assert client.ids == whole.ids[:at]
    assert client.finish.reason == ("length" if at == LONG else "cancelled")


def test_a_stop_after_the_end_stops_whoever_comes_next_under_the_same_key_and_nobody_else(
    engine: OnnxEngine, whole: Client
) -> None:
    """Keys are random: no other request has the same one."""
    client = ask(engine, PROMPT, max_tokens=3)
    client.cancel()
    assert ask(engine, PROMPT, max_tokens=LONG).ids == whole.ids
    again = Client(engine, PROMPT, key=client.key).submit().wait()
    assert again.finish.reason == "cancelled"


@pytest.mark.parametrize("at", [1, 2, 7])
def test_a_client_that_raises_at_any_event_is_counted_as_one_that_left(
    small: OnnxEngine, whole: Client, at: int
) -> None:
    """Its place is free in the same iteration; at its last event it had all that there is."""
    calls: list[Event | Failure] = []

    def gone(event: Event | Failure) -> None:
        calls.append(event)
        if len(calls) == at:
            raise ConnectionError

    Client(small, PROMPT, Sampling(max_tokens=7), on_event=gone).submit()
    assert ask(small, PROMPT, max_tokens=LONG).ids == whole.ids
    counts = small.figures().counts
    assert len(calls) == at
    assert counts.outcomes == ({"length": 2} if at == 7 else {"length": 1, "cancelled": 1})
    assert counts.wasted_decode_tokens == (0 if at == 7 else at)


def test_a_client_that_raises_at_its_stop_or_failure_disturbs_nobody(small: OnnxEngine, whole: Client) -> None:
    def gone(event: Event | Failure) -> None:
        if isinstance(event, Failure) or event.finish is not None:
            raise ConnectionError

    stopped = Client(small, PROMPT, Sampling(max_tokens=LONG), on_event=gone)
    stopped.cancel()
    stopped.submit()
    impossible = Sampling(min_tokens=2, stop_token_ids=tuple(range(387)))
    Client(small, PROMPT, impossible, on_event=gone).submit()
    assert ask(small, PROMPT, max_tokens=LONG).ids == whole.ids
    assert small.figures().counts.outcomes == {"cancelled": 1, InvalidRequest.code: 1, "length": 1}


def test_stopping_everybody_at_once_leaves_the_engine_empty_and_right(small: OnnxEngine, whole: Client) -> None:
    gate = Gate(after=3)
    clients = [Client(small, PROMPT, Sampling(max_tokens=LONG), on_event=gate).submit()]
    clients += [LONG_PROMPT.client(small, Sampling(max_tokens=9)).submit() for _ in range(8)]
    assert gate.reached.wait(60)
    for client in clients:
        client.cancel()
    before = small.figures().counts.iterations
    gate.opened.set()
    assert [client.wait().finish.reason for client in clients] == ["cancelled"] * 9
    assert small.figures().counts.iterations <= before + 1
    assert ask(small, PROMPT, max_tokens=LONG).ids == whole.ids


def test_close_in_the_middle_of_a_prefill_fails_it_and_counts_it(start_engine: Any, llm_folder: Path) -> None:
    engine, gate = start_engine(llm_folder, slots=2, iteration_tokens=CHUNK), Gate(after=4)
    running = Client(engine, PROMPT, Sampling(max_tokens=LONG), on_event=gate).submit()
    clients = [running, *(LONG_PROMPT.client(engine, Sampling(max_tokens=9)).submit() for _ in range(3))]
    assert gate.reached.wait(60)
    closing = threading.Thread(target=engine.close)
    closing.start()
    gate.opened.set()
    closing.join(60)
    assert [type(client.wait().failure.error) for client in clients] == [Unavailable] * 4
    counts = engine.figures().counts
    assert counts.outcomes == {Unavailable.code: 4}
    assert counts.wasted_prefill_tokens == counts.prefilled_tokens
    assert counts.wasted_decode_tokens == counts.output_tokens > 0
    assert engine.figures().kv_used_tokens == 0
    assert_empty(engine)


def test_stops_from_another_thread_at_any_moment_never_cost_a_neighbour_a_token(
    small: OnnxEngine, whole: Client
) -> None:
    """A thread that only stops, as fast as it can, while another submits and one request is decoded to its end."""
    targets: list[Client] = []
    done = threading.Event()

    def stop_all() -> None:
        while not done.is_set():
            for client in targets[-8:]:
                client.cancel()

    stopping = threading.Thread(target=stop_all)
    stopping.start()
    first = Client(small, PROMPT, Sampling(max_tokens=LONG)).submit()
    for number in range(200):
        client = Client(small, OTHERS[number % 4], Sampling(max_tokens=LONG))
        targets.append(client.submit())
        if number % 8 == 7:
            client.wait()
    for client in targets:
        client.wait()
    done.set()
    stopping.join(60)
    assert first.wait().ids == whole.ids


def test_close_at_any_moment_ends_whatever_was_taken_exactly_once(start_engine: Any, llm_folder: Path) -> None:
    """Two threads submit and stop while a third closes; a client fails on an event after its last one."""
    for seed in range(20):
        engine = start_engine(llm_folder, slots=2, iteration_tokens=CHUNK, max_queue=200)
        taken: list[Client] = []

        def submit_until_closed(seed: int, engine: OnnxEngine = engine, taken: list[Client] = taken) -> None:
            rng = random.Random(seed)
            for _ in range(50):
                client = rng.choice(PROMPTS).client(engine, Sampling(max_tokens=rng.randint(1, 9)))
                try:
                    taken.append(client.submit())
                except Unavailable:
                    return
                if rng.random() < 0.2:
                    client.cancel()

        submitting = [threading.Thread(target=submit_until_closed, args=(seed + number,)) for number in (0, 1000)]
        for thread in submitting:
            thread.start()
        while len(taken) <= seed * 2 and any(thread.is_alive() for thread in submitting):
            submitting[0].join(0.001)
        engine.close()
        for thread in submitting:
            thread.join(60)
        ends = [client.wait().events[-1] for client in taken]
        assert all(type(end.error) is Unavailable for end in ends if isinstance(end, Failure))
        counts = engine.figures().counts
        assert sum(counts.outcomes.values()) == len(taken)
        assert counts.outcomes[Unavailable.code] == sum(isinstance(end, Failure) for end in ends)
        assert_empty(engine)
