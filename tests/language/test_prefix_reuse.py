"""From a slot into the cache and back into another slot: what comes back, and for whom."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest

from proteus.language.generation import GenerationRequest, Scheduling, Spans
from proteus.language.kv_slots import KvSlots
from proteus.language.onnx_decoder import DecoderManifest, OnnxDecoder
from proteus.language.prefix import Chain
from proteus.language.prefix_reuse import PrefixReuse
from proteus.language.sampling import Sampling
from proteus.limits import PrefixCache as PrefixLimits

BLOCK, CONTEXT, LAYERS = 4, 32, 2
PICTURE = 2
DEMO = Path(__file__).parents[2] / "model_repository" / "llm" / "1"


class Bench:
    """Slots whose places all hold another value, and a cache over them."""

    def __init__(self, *, max_bytes: int = 1 << 20) -> None:
        self.kv = KvSlots(3, LAYERS, (2, CONTEXT, 4))
        rng = np.random.default_rng(0)
        for buffer in self.kv.keys + self.kv.values:
            buffer[...] = rng.random(buffer.shape, dtype=np.float32)
        self.limits = PrefixLimits(block_tokens=BLOCK, max_bytes=max_bytes, max_age_s=60.0)
        self.reuse = self.of("r1")

    def of(self, revision: str) -> PrefixReuse:
        return PrefixReuse(self.limits, self.kv, revision=revision)

    def same(self, one: int, two: int) -> int:
        """Places from the first on that are alike in two slots."""
        one_view, two_view = self.kv.view(one, 0, CONTEXT), self.kv.view(two, 0, CONTEXT)
        alike = (one_view == two_view).all(axis=(0, 1, 2, 4))
        return CONTEXT if alike.all() else int(alike.argmin())


def request_of(
    num_tokens: int, spans: Spans = (), rows: list[int] | None = None, *, keys: tuple[bytes, ...] = (), scope: str = "a"
) -> GenerationRequest:
    ids = np.arange(10, 10 + num_tokens, dtype=np.int32)
    for start, length in spans:
        ids[start : start + length] = PICTURE
    return GenerationRequest(
        request_key=b"",
        input_ids=ids,
        visual_tokens=None if rows is None else np.repeat(np.array(rows, dtype=np.float32)[:, None], 3, axis=1),
        visual_spans=spans,
        media_keys=keys,
        sampling=Sampling(max_tokens=1),
        scheduling=Scheduling(cache_scope=scope),
    )


def restored(bench: Bench, donor: GenerationRequest, other: GenerationRequest) -> int:
    """Tokens that another prompt gets in slot 2 from a donor in slot 0; no more and no less than that is copied."""
    bench.reuse.keep(bench.reuse.chain_of(donor), 0, len(donor.input_ids))
    num_tokens = len(other.input_ids)
    got = bench.reuse.restore(bench.reuse.chain_of(other), 2, 0, num_tokens)
    assert bench.same(0, 2) == got
    bench.reuse.check()
    return got


@pytest.mark.parametrize(
    ("num_tokens", "expected"),
    [(1, 0), (3, 0), (4, 2), (5, 3), (6, 4), (8, 6), (9, 7), (10, 8), (16, 14), (17, 15), (18, 16), (32, 16)],
)
def test_two_tokens_of_a_prompt_are_always_computed(num_tokens: int, expected: int) -> None:
    assert restored(Bench(), request_of(19), request_of(num_tokens)) == expected


def test_a_slot_is_restored_as_it_was_and_not_beyond() -> None:
    bench = Bench()
    assert restored(bench, request_of(19), request_of(19)) == 16
    assert bench.same(0, 2) == 16


def test_a_prompt_that_is_on_its_way_takes_what_another_computed_meanwhile() -> None:
    bench = Bench()
    links = bench.reuse.chain_of(request_of(19))
    assert bench.reuse.restore(links, 2, 0, 19) == 0
    bench.reuse.keep(links, 0, 9)
    assert bench.reuse.restore(links, 2, 4, 19) == 4
    bench.kv.write(2, 0, bench.kv.view(0, 0, 4))
    bench.reuse.keep(links, 0, 19)
    assert bench.reuse.restore(links, 2, 8, 19) == 8
    assert bench.reuse.restore(links, 2, 17, 19) == 0
    assert bench.same(0, 2) == 16


def test_a_donor_that_ended_early_gives_what_it_computed() -> None:
    bench = Bench()
    links = bench.reuse.chain_of(request_of(19))
    bench.reuse.keep(links, 0, 11)
    assert bench.reuse.restore(links, 2, 0, 19) == 8


@pytest.mark.parametrize("scope", ["b", "", "A", "a "])
def test_another_scope_gets_nothing(scope: str) -> None:
    assert restored(Bench(), request_of(19), request_of(19, scope=scope)) == 0


def test_another_revision_has_other_links() -> None:
    bench = Bench()
    assert not set(bench.of("r2").chain_of(request_of(19))) & set(bench.reuse.chain_of(request_of(19)))


SPANS: Spans = ((0, 5), (6, 5))


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([1] * 5 + [2] * 5, 16),
        ([1] * 5 + [3] * 5, 4),
        ([2] * 5 + [1] * 5, 0),
        ([1] * 10, 4),
        ([1] * 5 + [2] * 4 + [3], 4),
    ],
)
def test_pictures_without_names_are_told_apart_by_their_rows(rows: list[int], expected: int) -> None:
    assert restored(Bench(), request_of(19, SPANS, [1] * 5 + [2] * 5), request_of(19, SPANS, rows)) == expected


def test_a_name_stands_for_the_rows() -> None:
    bench = Bench()
    donor = request_of(19, SPANS, [1] * 10, keys=(b"one", b"two"))
    assert restored(bench, donor, replace(donor, visual_tokens=np.zeros((10, 3), dtype=np.float32))) == 16
    assert restored(Bench(), donor, replace(donor, media_keys=(b"one", b"other"))) == 4


def test_the_same_picture_twice_in_one_prompt_is_two_places() -> None:
    """[A, A] against [A, B, A], and against itself."""
    two: Spans = ((0, 4), (4, 4))
    three: Spans = ((0, 4), (4, 4), (8, 4))
    donor = request_of(15, two, [1] * 8)
    assert restored(Bench(), donor, request_of(15, two, [1] * 8)) == 12
    assert restored(Bench(), donor, request_of(15, three, [1] * 4 + [2] * 4 + [1] * 4)) == 4


def test_off_costs_no_digest_and_gives_nothing() -> None:
    bench = Bench(max_bytes=0)
    links = bench.reuse.chain_of(request_of(19))
    bench.reuse.keep(links, 0, 19)
    assert links == ()
    assert bench.reuse.restore(links, 2, 0, 19) == 0


def test_a_slot_with_a_value_that_is_not_finite_is_kept_up_to_there() -> None:
    bench = Bench()
    bench.kv.values[1][0, 1, 9, 2] = np.nan
    assert restored(bench, request_of(19), request_of(19)) == 8


def test_random_traffic_of_many_slots_gives_every_prompt_the_values_of_its_own_tokens() -> None:
    """Each place of a slot holds what stands before it; with room for few blocks, so that they come and go."""
    rng = np.random.default_rng(3)
    bench = Bench(max_bytes=12 * BLOCK * Bench().kv.bytes_per_token)
    hits = 0
    for _ in range(3000):
        ids = rng.integers(10, 12, rng.integers(2, 24)).astype(np.int32)
        scope = "ab"[rng.integers(2)]
        request = replace(request_of(len(ids), scope=scope), input_ids=ids)
        truth = [crc32(scope.encode() + ids[: place + 1].tobytes()) % 1_000_003 for place in range(len(ids))]
        slot, prefilled, links = int(rng.integers(3)), 0, bench.reuse.chain_of(request)
        stop = int(rng.integers(1, len(ids) + 1))  # where a client may leave
        while prefilled < stop:
            cached = bench.reuse.restore(links, slot, prefilled, len(ids))
            hits += cached > 0
            prefilled += cached
            end = min(len(ids), prefilled + int(rng.integers(1, 9)))
            for buffer in bench.kv.keys + bench.kv.values:
                buffer[slot, :, prefilled:end] = np.array(truth[prefilled:end], dtype=np.float32)[:, None]
            prefilled = end
            bench.reuse.keep(links, slot, prefilled)
        for buffer in bench.kv.keys + bench.kv.values:
            assert (buffer[slot, :, :prefilled] == np.array(truth[:prefilled])[:, None]).all()
    bench.reuse.check()
    figures = bench.reuse.figures()
    assert hits > 100
    assert figures.evicted_for_room > 100
    assert figures.held_blocks <= 12


def test_a_cached_prompt_has_the_bits_of_one_that_was_computed() -> None:
    """Keys, values and logits of the demo's decoder; pictures among the text, chunks of any length, blocks evicted."""
    manifest = DecoderManifest.load(DEMO)
    kv = KvSlots(2, manifest.num_layers, (manifest.num_kv_heads, 256, manifest.head_dim))
    decoder = OnnxDecoder(DEMO, manifest, kv, threads=1)
    limits = PrefixLimits(block_tokens=16, max_bytes=24 * 16 * kv.bytes_per_token, max_age_s=60.0)
    reuse = PrefixReuse(limits, kv, revision="r1")
    rng = np.random.default_rng(0)
    pictures = rng.normal(size=(2, 36, manifest.hidden_size)).astype(np.float32)
    base = rng.integers(10, manifest.vocab_size, 160)

    def prefill(slot: int, request: GenerationRequest, links: Chain) -> tuple[list[float], int]:
        ids, rows, num_cached, at = request.input_ids.astype(np.int64), request.visual_tokens, 0, 0
        places = np.flatnonzero(ids == manifest.image_token_id)
        while at < len(ids):
            cached = reuse.restore(links, slot, at, len(ids))
            num_cached, at = num_cached + cached, at + cached
            end = min(len(ids), at + int(rng.integers(2, 90)))
            end = len(ids) if end == len(ids) - 1 else end
            first, last = np.searchsorted(places, (at, end))
            chunk_rows = np.zeros((0, manifest.hidden_size), np.float32) if rows is None else rows[first:last]
            logits = decoder.prefill(slot, ids[at:end], at, chunk_rows, places[first:last] - at)
            at = end
            reuse.keep(links, slot, at)
        return logits.tolist(), num_cached

    hits = 0
    for _ in range(60):
        num_tokens = int(rng.integers(2, 160))
        ids = np.concatenate([base[: (same := int(rng.integers(num_tokens)))], base[::-1][: num_tokens - same]])
        spans = tuple((start, 36) for start in (20, 60)[: rng.integers(3)] if start + 36 < num_tokens)
        for start, length in spans:
            ids[start : start + length] = manifest.image_token_id
        rows = np.concatenate([pictures[rng.integers(2)] for _ in spans]) if spans else None
        request = replace(request_of(1), input_ids=ids.astype(np.int32), visual_spans=spans, visual_tokens=rows)
        computed, none = prefill(0, request, ())
        given, num_cached = prefill(1, request, reuse.chain_of(request))
        hits += num_cached
        assert none == 0
        assert given == computed
        assert np.array_equal(kv.view(0, 0, num_tokens), kv.view(1, 0, num_tokens))
    assert hits > 500
    assert reuse.figures().evicted_for_room > 50


def test_memory_is_flat_over_ten_thousand_prompts() -> None:
    bench = Bench(max_bytes=12 * BLOCK * Bench().kv.bytes_per_token)

    def serve(numbers: range) -> None:
        for number in numbers:
            request = request_of(13, ((0, 2),), [0, 0], keys=(number.to_bytes(4, "big"),))
            links = bench.reuse.chain_of(request)
            prefilled = bench.reuse.restore(links, 0, 0, 13)
            bench.reuse.keep(links, 0, 13)
            bench.reuse.count(prompt_tokens=13, cached_tokens=prefilled)

    serve(range(500))
    tracemalloc.start()
    serve(range(500, 1_000))
    before, _ = tracemalloc.get_traced_memory()
    serve(range(1_000, 10_000))
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 4_096
    figures = bench.reuse.figures()
    assert (figures.lookups, figures.held_blocks, figures.evicted_for_room) == (10_000, 12, 29_988)
