"""What the engine holds: bytes of keys and values by the formula, and nothing that grows with the requests served."""

from __future__ import annotations

import gc
import random
import weakref
from pathlib import Path
from typing import Any

import pytest

from proteus.errors import InvalidRequest, QueueFull
from proteus.families.llava import LlavaFamily
from proteus.language.engine import Event, Failure, OnnxEngine
from proteus.language.generation import Scheduling
from proteus.language.live_sequence import LiveSequence
from proteus.language.sampling import Sampling
from proteus.language.task import Task
from tests.language.clients import CONTEXT, LONG, PROMPT, SLOTS, Client, Gate, ask, assert_empty
from tests.language.prompts import Prompt, spell

PAGE_BYTES = 4096
WARM, ALL = 2_000, 10_000  # requests
MOST_GROWTH_BYTES = 3_000_000  # less than 400 bytes for each of the others
SAMPLINGS = (
    Sampling(max_tokens=3),
    Sampling(max_tokens=2, temperature=1.0, seed=1, logprobs=True, top_logprobs=3),
    Sampling(max_tokens=3, temperature=1.0, frequency_penalty=1.0, repetition_penalty=1.1, stop=("never said",)),
    Sampling(max_tokens=2, min_tokens=1, stop_token_ids=tuple(range(387))),  # fails
)


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


class Traffic:
    """Requests of ever new tenants, scopes, keys and deadlines, some like others; a tenth is stopped, a few fail."""

    def __init__(self, engine: OnnxEngine) -> None:
        self._engine, self._random = engine, random.Random(0)
        self._prompts = [spell(number) for number in (1, 9, 18, 30)] + [spell(1, "A", 2), spell(9, "A", "B", 4)]
        self.num_served = 0

    def serve(self, num_requests: int) -> None:
        clients: list[Client] = []
        for _ in range(num_requests):
            clients.append(self._submit())
            if len(clients) == 40:
                self._wait(clients)
                clients = []
        self._wait(clients)

    def _submit(self) -> Client:
        chance = self._random
        number = chance.randrange(1 << 40)
        scheduling = Scheduling(
            cache_scope=chance.choice(("shared", f"scope {number}")),
            tenant=f"tenant {number}",
            latency_class=chance.choice(("text", "media", "batch")),
            deadline_s=chance.choice((None, 1e12 + number)),
        )
        prompt: Prompt = chance.choice(self._prompts)
        client = prompt.client(self._engine, chance.choice(SAMPLINGS), scheduling=scheduling)
        if chance.random() < 0.05:
            client.cancel()  # overtakes it
        client.submit()
        if chance.random() < 0.1:
            client.cancel()
        return client

    def _wait(self, clients: list[Client]) -> None:
        for client in clients:
            client.wait()
        self.num_served += len(clients)


def growth_of(traffic: Traffic) -> int:
    """Of resident memory, over as many requests as follow the first ones."""
    before = resident_bytes()
    traffic.serve(ALL - WARM)
    return resident_bytes() - before


def test_memory_is_flat_over_ten_thousand_requests(start_engine: Any, llm_folder: Path) -> None:
    engine = start_engine(llm_folder, max_queue=64, prefix_bytes=1 << 18)
    traffic = Traffic(engine)
    traffic.serve(WARM)
    growths = [growth_of(traffic)]
    if growths[0] >= MOST_GROWTH_BYTES:  # the heap of a process that ran other tests steps up at times; a leak goes on
        growths.append(growth_of(traffic))
    assert min(growths) < MOST_GROWTH_BYTES, growths
    assert_empty(engine)
    figures = engine.figures()
    assert sum(figures.counts.outcomes.values()) == traffic.num_served >= ALL
    assert min(figures.counts.outcomes.values()) > 300
    assert (figures.kv_used_tokens, figures.scheduler.kv_tokens) == (0, 0)
    assert figures.prefixes.evicted_for_room > 1_000
    assert figures.prefixes.held_bytes <= figures.prefixes.capacity_bytes <= 1 << 18
    gc.collect()
    alive = [thing for thing in gc.get_objects() if type(thing) in (LiveSequence, Task)]
    assert len(alive) < 10 * SLOTS  # the last batch and its iteration
    engine.close()


def test_ten_thousand_requests_stopped_as_soon_as_they_are_submitted_leave_nothing(
    start_engine: Any, llm_folder: Path, whole: Client
) -> None:
    engine = start_engine(llm_folder, max_queue=10_000)
    prompts = [spell(60), spell(9, "A", 2), spell(2)]

    def submit_and_stop(num_requests: int) -> None:
        clients = []
        for number in range(num_requests):
            client = prompts[number % 3].client(engine, Sampling(max_tokens=LONG))
            clients.append(client.submit())
            client.cancel()
        assert {client.wait().finish.reason for client in clients} <= {"cancelled", "length"}

    submit_and_stop(WARM)
    before = resident_bytes()
    for _ in range(4):
        submit_and_stop(WARM)
    assert resident_bytes() - before < MOST_GROWTH_BYTES
    assert_empty(engine)
    counts = engine.figures().counts
    assert sum(counts.outcomes.values()) == ALL
    assert counts.outcomes["cancelled"] > 0.95 * ALL  # a thread may be held up for longer than an answer takes
    assert 0 <= counts.prefilled_tokens - counts.wasted_prefill_tokens <= 60 * counts.outcomes["length"]
    assert ask(engine, PROMPT, max_tokens=LONG).ids == whole.ids
    engine.close()


def test_rows_of_pictures_are_let_go_when_the_prompt_is_in_or_the_request_ends(engine: OnnxEngine) -> None:
    """They are the largest thing a request holds, and an answer can take long."""

    def submit(**more: Any) -> tuple[Client, weakref.ref[Any]]:
        prompt = spell(9, "A", "B", 4)
        client = prompt.client(engine, Sampling(max_tokens=LONG), **more)
        rows = weakref.ref(client.visual_tokens)
        client.submit()
        client.visual_tokens = None
        return client, rows

    gate = Gate(after=2)
    client, rows = submit(on_event=gate)
    assert gate.reached.wait(60)
    gc.collect()
    assert rows() is None
    waiting = [submit() for _ in range(5)]
    for stopped, _ in waiting:
        stopped.cancel()
    gate.opened.set()
    client.wait()
    for stopped, rows in waiting:
        stopped.wait()
        gc.collect()
        assert rows() is None


def test_a_failure_that_its_client_keeps_holds_nothing_of_the_request(engine: OnnxEngine) -> None:
    """An error's traceback holds frames, and they the logits and the whole sequence, until the collector comes."""
    impossible = Sampling(max_tokens=2, min_tokens=1, stop_token_ids=tuple(range(387)))
    gc.collect()
    gc.disable()
    try:
        clients = [ask_with(engine, impossible) for _ in range(30)]
        alive = [thing for thing in gc.get_objects() if type(thing) is LiveSequence]
    finally:
        gc.enable()
    assert [type(client.failure.error) for client in clients] == [InvalidRequest] * 30
    assert len(alive) < 10


def ask_with(engine: OnnxEngine, sampling: Sampling) -> Client:
    return spell(9, "A").client(engine, sampling).submit().wait()


def test_bytes_of_keys_and_values_are_those_of_the_formula_at_every_moment(
    start_engine: Any, llm_folder: Path, tiny_checkpoint: Path
) -> None:
    """2 · layers · tokens · kv_heads · head_dim · bytes, as the family counts it for admission; float32 here."""
    language = LlavaFamily.from_checkpoint(tiny_checkpoint).language
    engine = start_engine(llm_folder, prefix_bytes=1 << 18)

    def bytes_of(tokens: int) -> int:
        return language.self_kv_bytes(tokens, value_bytes=4)

    prompt, seen = spell(9, "A", "B", 4), []

    def on_event(event: Event | Failure) -> None:
        seen.append(dict(engine.figures().values("proteus_llm_kv_bytes")))

    client = prompt.client(engine, Sampling(max_tokens=8), on_event=on_event).submit().wait()
    length = len(prompt.ids)
    for number, values in enumerate(seen[:-1]):
        assert values == {
            "allocated": bytes_of(SLOTS * CONTEXT),
            "reserved": bytes_of(length + 8),
            "used": bytes_of(length + number),
        }
    assert len(seen) == len(client.events) == 8
    assert (seen[-1]["reserved"], seen[-1]["used"]) == (0, 0)
    figures = engine.figures().prefixes
    assert figures.held_bytes == bytes_of(length // 8 * 8)
    assert figures.capacity_bytes == (1 << 18) // bytes_of(8) * bytes_of(8)
    engine.close()


def test_a_full_queue_that_refuses_holds_nothing_of_what_it_refused(start_engine: Any, llm_folder: Path) -> None:
    engine, gate = start_engine(llm_folder, slots=1, max_queue=1), Gate()
    clients = [Client(engine, PROMPT, Sampling(max_tokens=2), on_event=gate).submit()]
    assert gate.reached.wait(60)
    clients.append(Client(engine, PROMPT, Sampling(max_tokens=2)).submit())
    refused = [spell("A", 9).client(engine, Sampling()) for _ in range(20)]
    for client in refused:
        with pytest.raises(QueueFull):
            client.submit()
    rows = [weakref.ref(client.visual_tokens) for client in refused]
    del refused, client
    gc.collect()
    assert [reference() for reference in rows] == [None] * 20
    gate.opened.set()
    for client in clients:
        client.wait()
    assert_empty(engine)
    engine.close()
