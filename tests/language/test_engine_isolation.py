"""What one request's prompt saves another, and whom it never does, through the engine; counted in tokens and
iterations, which is all that time is made of.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proteus.errors import BrokenModel, InvalidRequest
from proteus.language.engine import Event, Failure, OnnxEngine
from proteus.language.generation import Scheduling, TokenLogprobs
from proteus.language.sampling import Sampling
from proteus.language.tokenizer import load_tokenizer
from tests.language import plant
from tests.language.clients import PROMPT, Client, Gate, assert_empty, engine_limits
from tests.language.prompts import VISUAL_TOKENS, Prompt, spell

BLOCK = 8  # tokens, as engine_limits has it
SAMPLING = Sampling(max_tokens=6, temperature=1.0, seed=3, logprobs=True, top_logprobs=4)
PICTURES = spell(1, "A", "A", 5)
SPOILT = 371


@pytest.fixture
def fresh(start_engine: Any, llm_folder: Path) -> Iterator[OnnxEngine]:
    """With nothing in its cache; room for all."""
    engine = start_engine(llm_folder)
    yield engine
    assert_empty(engine)
    engine.close()


@pytest.fixture(scope="module")
def plain(start_engine: Any, llm_folder: Path) -> Iterator[OnnxEngine]:
    """Without a cache: what is right."""
    engine = start_engine(llm_folder, prefix_bytes=0)
    yield engine
    engine.close()


@dataclass(frozen=True)
class Spent:
    """What a request took from the engine."""

    iterations: int
    computed: int  # tokens of prompts
    cached: int


def spent(engine: OnnxEngine) -> Spent:
    counts = engine.figures().counts
    return Spent(counts.iterations, counts.prefilled_tokens, counts.cached_tokens)


def ask(engine: OnnxEngine, prompt: Prompt, scope: str = "a", **more: Any) -> tuple[Client, Spent]:
    before = spent(engine)
    client = prompt.client(engine, SAMPLING, scheduling=Scheduling(cache_scope=scope), **more).submit().wait()
    after = spent(engine)
    return client, Spent(
        after.iterations - before.iterations, after.computed - before.computed, after.cached - before.cached
    )


def said(client: Client) -> tuple[list[int], list[TokenLogprobs]]:
    return client.ids, [row for event in client.events if isinstance(event, Event) for row in event.logprobs]


def right(plain: OnnxEngine, prompt: Prompt) -> tuple[list[int], list[TokenLogprobs]]:
    return said(ask(plain, prompt)[0])


@pytest.mark.parametrize(
    "prompt", [spell(60), spell(1, "A", "A", 20), spell("A", 50, "B", 2)], ids=["text", "pictures", "mixed"]
)
@pytest.mark.parametrize("scope", ["b", "", "A", "a\0", "аb"])
def test_a_prompt_costs_another_scope_what_it_costs_a_stranger(fresh: OnnxEngine, prompt: Prompt, scope: str) -> None:
    _, stranger = ask(fresh, prompt)
    other, cost = ask(fresh, prompt, scope)
    assert (other.finish.cached_tokens, cost) == (0, stranger)
    again, less = ask(fresh, prompt)
    assert again.finish.cached_tokens == less.cached > 0
    assert less.computed == len(prompt.ids) - less.cached
    assert less.iterations < stranger.iterations
    assert said(other) == said(again)


def test_other_weights_never_hit(start_engine: Any, fresh: OnnxEngine, llm_folder: Path, tiny_checkpoint: Path) -> None:
    """A cache lives as long as its engine; its digests name the revision all the same."""
    tokenizer = load_tokenizer(tiny_checkpoint)
    other = OnnxEngine(llm_folder, tokenizer, engine_limits(), revision="another")
    prompt = spell(60)
    _, first = ask(fresh, prompt)
    assert ask(other, prompt)[1] == first
    assert other.figures().prefixes.hits == 0
    other.close()


@pytest.mark.parametrize("names", [True, False])
@pytest.mark.parametrize(
    ("donor", "other", "cached"),
    [
        (spell("A", "A", 6), spell("A", "A", 6), 22),  # all but two
        (spell("A", "A", 6), spell("A", "B", 6), 8),  # the ids are the same; the second block has one row of the first
        (spell("A", "A", 6), spell("B", "A", 6), 0),
        (spell("A", "A", 6), spell("A", "B", "A", 6), 8),
        (spell("A", "B", "A", 6), spell("A", "A", 6), 8),
        (spell("A", "B", "A", 6), spell("B", "A", "A", 6), 0),
        (spell("A", "B", "A", 6), spell("A", "B", "B", 6), 16),
        (spell(6, "A", 6), spell(7, "A", 6), 0),  # the same picture one place further
        (spell(8, "A", 6), spell(8, "B", 6), 8),
    ],
)
def test_pictures_are_reused_as_far_as_they_are_the_same_in_the_same_places(
    fresh: OnnxEngine, plain: OnnxEngine, donor: Prompt, other: Prompt, cached: int, names: bool
) -> None:
    ask(fresh, donor, names=names)
    client, _ = ask(fresh, other, names=names)
    assert client.finish.cached_tokens == cached
    assert said(client) == right(plain, other)


def test_one_picture_twice_in_a_request_is_no_hit_of_its_own(fresh: OnnxEngine, plain: OnnxEngine) -> None:
    """[A, A] in 8 + 8 tokens: the second block shows the same rows, but stands behind the first."""
    prompt = spell("A", "A", "A", "A", 4)
    client, cost = ask(fresh, prompt)
    assert (cost.cached, cost.computed) == (0, len(prompt.ids))
    assert said(client) == right(plain, prompt)


def test_names_of_pictures_and_their_rows_are_different_names(fresh: OnnxEngine, plain: OnnxEngine) -> None:
    """A key that is sent is never taken for one that is left out: less is saved, nothing is mixed."""
    for names in (True, False, True, False):
        client, _ = ask(fresh, PICTURES, names=names)
        assert said(client) == right(plain, PICTURES)
    assert client.finish.cached_tokens == len(PICTURES.ids) - 2


def test_a_false_name_harms_its_own_scope_alone(fresh: OnnxEngine, plain: OnnxEngine) -> None:
    """Whoever computed B under the name of A finds it where A is asked for; nobody in another scope does."""
    liar = Prompt(ids=PICTURES.ids, spans=PICTURES.spans, rows=spell("B", "B").rows, keys=PICTURES.keys)
    ask(fresh, liar, "liar", names=True)
    own, _ = ask(fresh, PICTURES, "liar", names=True)
    assert own.finish.cached_tokens > 0
    assert said(own) != right(plain, PICTURES)
    honest, cost = ask(fresh, PICTURES, "honest", names=True)
    assert cost.cached == 0
    assert said(honest) == right(plain, PICTURES)


@pytest.mark.parametrize("keys", [(b"A",), (b"A", b"B", b"C"), (b"A", b"")])
@pytest.mark.parametrize("prefix_bytes", [0, 1 << 20])
def test_pictures_and_names_that_do_not_match_are_the_clients_error(
    start_engine: Any, llm_folder: Path, keys: tuple[bytes, ...], prefix_bytes: int
) -> None:
    engine = start_engine(llm_folder, prefix_bytes=prefix_bytes)
    wrong = Prompt(ids=PICTURES.ids, spans=PICTURES.spans, rows=PICTURES.rows, keys=keys)
    with pytest.raises(InvalidRequest, match=r"media_keys .*; limit: .*2 visual spans"):
        ask(engine, wrong, names=True)
    with pytest.raises(InvalidRequest, match="media_keys"):
        ask(engine, Prompt(ids=PROMPT, keys=(b"A",)), names=True)
    assert_empty(engine)
    engine.close()


def test_many_wait_for_the_picture_at_the_head_of_the_queue_and_share_it(
    start_engine: Any, llm_folder: Path, plain: OnnxEngine
) -> None:
    """All arrive before the first is computed; each block is computed once, whoever is first at it."""
    engine, gate = start_engine(llm_folder, slots=6, iteration_tokens=12, max_media_prefills=4), Gate()
    running = Client(engine, PROMPT, Sampling(max_tokens=2), on_event=gate).submit()
    assert gate.reached.wait(60)
    before = spent(engine)
    prompts = [spell("A", number) for number in (4, 5, 9, 16, 30, 4, 60)]
    scheduling = Scheduling(cache_scope="a", latency_class="media")
    clients = [prompt.client(engine, SAMPLING, scheduling=scheduling).submit() for prompt in prompts]
    gate.opened.set()
    for prompt, client in zip(prompts, clients, strict=True):
        assert said(client.wait()) == right(plain, prompt)
    running.wait()
    computed = spent(engine).computed - before.computed
    cached = sum(client.finish.cached_tokens for client in clients)
    assert computed + cached == sum(len(prompt.ids) for prompt in prompts)
    assert cached >= (len(prompts) - 1) * VISUAL_TOKENS // 2
    assert spent(engine).cached - before.cached == cached
    assert_empty(engine)
    engine.close()


def test_two_equal_prompts_at_once_are_computed_about_once(fresh: OnnxEngine, plain: OnnxEngine) -> None:
    gate, prompt = Gate(), spell("A", 80)
    running = Client(fresh, PROMPT, Sampling(max_tokens=2), on_event=gate).submit()
    assert gate.reached.wait(60)
    before = spent(fresh)
    clients = [prompt.client(fresh, SAMPLING).submit() for _ in range(2)]
    gate.opened.set()
    for client in clients:
        assert said(client.wait()) == right(plain, prompt)
    running.wait()
    assert spent(fresh).computed - before.computed < len(prompt.ids) + 4 * BLOCK


@pytest.mark.parametrize("at", range(2, 7))
def test_a_donor_that_is_stopped_in_its_prefill_leaves_right_blocks(
    start_engine: Any, llm_folder: Path, plain: OnnxEngine, at: int
) -> None:
    """Stopped after any number of chunks, while its neighbour decodes."""
    engine, gate = start_engine(llm_folder, iteration_tokens=14), Gate()
    prompt = spell(3, "A", 10, "B", 50)
    donor = prompt.client(engine, SAMPLING)

    def on_event(event: Event | Failure) -> None:
        gate(event)
        if len(neighbour.events) == at:
            donor.cancel()

    neighbour = Client(engine, PROMPT, Sampling(max_tokens=20), on_event=on_event).submit()
    assert gate.reached.wait(60)
    before = spent(engine)
    donor.submit()
    gate.opened.set()
    donor.wait()
    neighbour.wait()
    computed = spent(engine).computed - before.computed
    assert (donor.ids, donor.finish.reason) == ([], "cancelled")
    assert 0 < computed < len(prompt.ids)
    assert engine.figures().counts.wasted_prefill_tokens == computed
    assert engine.figures().prefixes.held_blocks == computed // BLOCK
    client, cost = ask(engine, prompt, "")
    assert cost.cached == computed // BLOCK * BLOCK
    assert said(client) == right(plain, prompt)
    assert_empty(engine)
    engine.close()


@pytest.mark.parametrize("head", [0, 1, 8, 9, 30])
def test_a_donor_whose_values_are_not_finite_leaves_no_such_block(
    start_engine: Any, llm_folder: Path, plain: OnnxEngine, tmp_path: Path, head: int
) -> None:
    folder = plant.copy(llm_folder, tmp_path / "1")
    plant.edit_embedding(folder, nan_row=SPOILT)
    engine = start_engine(folder, iteration_tokens=14)
    client, _ = ask(engine, spell(head, [SPOILT], 40 - head))
    assert isinstance(client.failure.error, BrokenModel)
    assert engine.figures().prefixes.held_blocks <= head // BLOCK
    for prompt in (spell(head, 40), spell(head, [SPOILT + 1], 40 - head)):
        client, cost = ask(engine, prompt)
        assert cost.cached <= head
        assert said(client) == right(plain, prompt)
    assert isinstance(ask(engine, spell(head, [SPOILT], 40 - head))[0].failure.error, BrokenModel)
    engine.close()


def test_blocks_that_come_and_go_under_everyones_feet_change_no_answer(
    start_engine: Any, llm_folder: Path, plain: OnnxEngine
) -> None:
    """Room for five blocks, and each prompt has more: donors evict each other while others are restored."""
    block_bytes = BLOCK * plain.figures().kv_bytes_per_token
    engine = start_engine(llm_folder, slots=4, iteration_tokens=12, prefix_bytes=5 * block_bytes)
    prompts = [spell(*parts) for parts in ((24, "A", 30), (24, "B", 30), (40,), (24, "A", "B", 9), ("A", 45))]
    expected = [right(plain, prompt) for prompt in prompts]
    for seed in range(4):
        order = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(prompts)), 6))
        clients = [prompts[number].client(engine, SAMPLING).submit() for number in order]
        for number, client in zip(order, clients, strict=True):
            assert said(client.wait()) == expected[number]
    figures = engine.figures().prefixes
    assert figures.hits > 20
    assert figures.evicted_for_room > 50
    assert figures.held_bytes <= figures.capacity_bytes == 5 * block_bytes
    assert_empty(engine)
    engine.close()


def test_figures_add_up_the_cached_tokens_that_clients_were_told(fresh: OnnxEngine) -> None:
    prompts = [spell(60), spell(40), spell(60), PICTURES, PICTURES, spell(1), spell(9)]
    clients = [ask(fresh, prompt)[0] for prompt in prompts]
    told = [client.finish.cached_tokens for client in clients]
    figures = fresh.figures()
    assert told == [0, 38, 56, 0, 22, 0, 7]
    assert figures.counts.cached_tokens == figures.prefixes.hit_tokens == sum(told)
    assert (figures.prefixes.lookups, figures.prefixes.hits) == (7, 4)
    assert figures.prefixes.looked_up_tokens == sum(len(prompt.ids) for prompt in prompts)
    assert figures.counts.prefilled_tokens == sum(len(prompt.ids) for prompt in prompts) - sum(told)
    assert figures.values("proteus_llm_prefill_tokens_total")["cached"] == sum(told)
    saved_us = [client.finish.saved_us for client in clients]
    assert [saved > 0 for saved in saved_us] == [cached > 0 for cached in told]
    assert sum(saved_us) / 1e6 == pytest.approx(figures.saved_s + figures.copy_s, abs=1e-5), "what requests were told"
    assert figures.prefixes.held_bytes == figures.prefixes.held_blocks * BLOCK * figures.kv_bytes_per_token
