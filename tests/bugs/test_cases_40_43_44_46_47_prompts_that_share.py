"""Seen: answers garbled under load, and only with a prefix cache (40); eviction that never comes to an end, with every
request behind it silently stuck (43); the same picture twice in a request, where two places share one entry (44);
requests that wait while holding what the first of them needs (46); two pictures of which the cache holds one, and a
chunk rounded down to nothing: 156,000 empty passes (47).

Cause: entries that are counted, locked or evicted by others than those who read them.
Right: an answer is byte-equal with the cache off; a block is a copy in both directions, so nobody waits for one or
holds one; every pass computes something or ends somebody.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proteus.language.engine import OnnxEngine
from proteus.language.sampling import Sampling
from proteus.language.tokenizer import load_tokenizer
from tests.language import plant
from tests.language.clients import Client, assert_empty, engine_limits
from tests.language.prompts import VISUAL_TOKENS, WIDTH, Prompt, spell

CONTEXT = 128
BLOCK = 8
BLOCK_BYTES = BLOCK * 512  # of the tiny checkpoint: 2 · 2 layers · 2 heads · 16 · 4 bytes for each token
SAMPLING = Sampling(max_tokens=12, temperature=0.8, seed=1)


@pytest.fixture
def start(tiny_export: Path, tiny_checkpoint: Path, tmp_path: Path) -> Iterator[Callable[..., OnnxEngine]]:
    folder = plant.copy(tiny_export / "model_repository" / "llm" / "1", tmp_path / "1", eos_token_ids=[])
    engines: list[OnnxEngine] = []

    def start(**limits: Any) -> OnnxEngine:
        limits = {"context_tokens": CONTEXT, "max_queue": 512, **limits}
        engine = OnnxEngine(folder, load_tokenizer(tiny_checkpoint), engine_limits(**limits), revision="tiny")
        assert engine.figures().kv_bytes_per_token * BLOCK == BLOCK_BYTES
        engines.append(engine)
        return engine

    yield start
    for engine in engines:
        assert_empty(engine)
        engine.close()


def answers(engine: OnnxEngine, prompts: list[Prompt]) -> list[tuple[list[int], str]]:
    """All at once, each from a thread of its own."""
    clients = [prompt.client(engine, SAMPLING) for prompt in prompts]
    threads = [threading.Thread(target=client.submit) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return [(client.wait().ids, client.text) for client in clients]


def maze(cell: int) -> Prompt:
    """Equal to all others but for one token of sixty, or one row of the picture that is in the middle."""
    prompt = spell(30, "A", 30)
    ids, rows = list(prompt.ids), prompt.rows
    assert rows is not None
    if cell < len(ids) and ids[cell] != 3:
        ids[cell] += 1
    else:
        rows = rows.copy()
        rows[cell % VISUAL_TOKENS, cell % WIDTH] += 1
    return Prompt(ids=ids, spans=prompt.spans, rows=rows)


def test_64_prompts_that_differ_in_a_cell_are_answered_as_without_a_cache(start: Any) -> None:
    mazes = [maze(cell) for cell in range(64)]
    expected = answers(start(prefix_bytes=0, slots=1), mazes)
    assert len({tuple(ids) for ids, _ in expected}) > 48
    for limits in (
        {"prefix_bytes": 1 << 20},
        {"prefix_bytes": 6 * BLOCK_BYTES},
        {"prefix_bytes": 1 << 20, "slots": 16},
    ):
        engine = start(iteration_tokens=40, **limits)
        for _ in range(2):
            assert answers(engine, mazes) == expected
        assert engine.figures().counts.cached_tokens > 1000


def test_unique_pictures_for_ever_are_evicted_and_hold_nobody_up(start: Any) -> None:
    engine = start(prefix_bytes=6 * BLOCK_BYTES)
    rng = np.random.default_rng(0)
    prompts = []
    for _ in range(300):
        prompt = spell("A", 20)
        rows = rng.standard_normal((VISUAL_TOKENS, WIDTH)).astype(np.float32)
        prompts.append(Prompt(ids=prompt.ids, spans=prompt.spans, rows=rows))
    assert len(answers(engine, prompts)) == 300
    figures = engine.figures().prefixes
    assert (figures.held_blocks, figures.evicted_for_room) == (6, 300 * 3 - 6)


@pytest.mark.parametrize("order", ["AA", "ABA", "AAB", "ABBA", "AAAA"])
def test_the_same_picture_twice_is_two_places_whoever_computed_them_before(start: Any, order: str) -> None:
    prompts = [spell(*order, 3), spell(*order[::-1], 3), spell(*order[:-1], 3), spell(5, *order, 3)] * 3
    expected = answers(start(prefix_bytes=0, slots=1), prompts)
    assert answers(start(), prompts) == expected


def test_many_requests_with_more_pictures_than_the_cache_holds_all_end(start: Any) -> None:
    """Three pictures each, room for one; as many slots as would deadlock if a waiting request held anything."""
    engine = start(prefix_bytes=BLOCK_BYTES, slots=4, iteration_tokens=12, max_media_prefills=4)
    prompts = [spell(*pictures, 4) for pictures in ("ABC", "BCA", "CAB", "ACB") * 10]
    assert all(len(ids) == SAMPLING.max_tokens for ids, _ in answers(engine, prompts))


@pytest.mark.parametrize("iteration_tokens", [3, 4, 5, 9, 16])
def test_no_pass_is_empty_however_large_the_prompts_and_small_the_cache(start: Any, iteration_tokens: int) -> None:
    """Two prompts larger than the cache and than any chunk; every pass of the loop computes at least two tokens."""
    engine = start(prefix_bytes=BLOCK_BYTES, slots=2, iteration_tokens=iteration_tokens)
    prompts = [spell(*"ABCDEFGHIJ", 2), spell(*"KLMNOPQRST", 9)]
    clients: list[Client] = [prompt.client(engine, Sampling(max_tokens=2)).submit() for prompt in prompts]
    assert [len(client.wait().ids) for client in clients] == [2, 2]
    counts = engine.figures().counts
    assert counts.iterations <= sum(len(prompt.ids) for prompt in prompts) // 2 + 2 * 2
