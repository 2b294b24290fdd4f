"""From a slot into the cache and back into another slot: what comes back, and for whom."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from zlib import crc32

import numpy as np
import pytest

from proteus.language.generation import GenerationRequest, Scheduling, Spans
from proteus.language.kv_slots import KvSlots
from proteus.language.prefix_reuse import PrefixReuse
from proteus.language.sampling import Sampling
from proteus.limits import PrefixCache as PrefixLimits

BLOCK, CONTEXT, LAYERS = 4, 32, 2
PICTURE = 2


class Bench:
    """Slots whose places all hold another value, and a cache over them."""

    def __init__(self, *, max_bytes: int = 1 << 20) -> None:
        self.kv = KvSlots(3, LAYERS, (2, CONTEXT, 4))
        rng = np.random.default_rng(0)
        for buffer in self.kv.keys + self.kv.values:
            buffer[...] = rng.random(buffer.shape, dtype=np.float32)
        self.limits = PrefixLimits(block_tokens=BLOCK, max_bytes=max_bytes, max_age_s=60.0)
        self.reuse = self.of(revision="r1")

    def of(self, **model: str) -> PrefixReuse:
        return PrefixReuse(self.limits, self.kv, clock_s=lambda: 0.0, **model)

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
    bench.reuse.keep(0, bench.reuse.digests(donor), prefilled=len(donor.input_ids))
    num_tokens = len(other.input_ids)
    got = bench.reuse.restore(2, bench.reuse.digests(other), prompt_tokens=num_tokens, prefilled=0)
    assert bench.same(0, 2) // BLOCK == -(-got // BLOCK)
    bench.reuse.check()
    return got


@pytest.mark.parametrize(
    ("num_tokens", "expected"),
    [(1, 0), (3, 0), (4, 0), (5, 3), (6, 4), (8, 4), (9, 7), (10, 8), (16, 12), (17, 15), (18, 16), (32, 16)],
)
def test_two_tokens_of_a_prompt_are_always_computed(num_tokens: int, expected: int) -> None:
    assert restored(Bench(), request_of(19), request_of(num_tokens)) == expected


def test_a_slot_is_restored_as_it_was_and_not_beyond() -> None:
    bench = Bench()
    assert restored(bench, request_of(19), request_of(19)) == 16
    assert bench.same(0, 2) == 16


def test_a_prompt_that_is_on_its_way_takes_what_another_computed_meanwhile() -> None:
    bench = Bench()
    digests = bench.reuse.digests(request_of(19))
    for prefilled, expected in ((0, 0), (2, 2)):
        assert bench.reuse.restore(2, digests, prompt_tokens=19, prefilled=prefilled) == expected
    bench.reuse.keep(0, digests, prefilled=9)
    assert bench.reuse.restore(2, digests, prompt_tokens=19, prefilled=2) == 8
    bench.reuse.keep(0, digests, prefilled=19)
    assert bench.reuse.restore(2, digests, prompt_tokens=19, prefilled=10) == 16
    assert bench.reuse.restore(2, digests, prompt_tokens=19, prefilled=17) == 17
    assert bench.same(0, 2) == 16


def test_a_donor_that_ended_early_gives_what_it_computed() -> None:
    bench = Bench()
    digests = bench.reuse.digests(request_of(19))
    bench.reuse.keep(0, digests, prefilled=11)
    assert bench.reuse.restore(2, digests, prompt_tokens=19, prefilled=0) == 8


@pytest.mark.parametrize("scope", ["b", "", "A", "a "])
def test_another_scope_gets_nothing(scope: str) -> None:
    assert restored(Bench(), request_of(19), request_of(19, scope=scope)) == 0


@pytest.mark.parametrize("model", [{"revision": "r2"}, {"revision": "r1", "adapter": "x"}])
def test_another_revision_or_adapter_has_other_digests(model: dict[str, str]) -> None:
    bench = Bench()
    assert not set(bench.of(**model).digests(request_of(19))) & set(bench.reuse.digests(request_of(19)))


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
    digests = bench.reuse.digests(request_of(19))
    bench.reuse.keep(0, digests, prefilled=19)
    assert digests == ()
    assert bench.reuse.restore(2, digests, prompt_tokens=19, prefilled=0) == 0


def test_a_slot_with_a_value_that_is_not_finite_is_kept_up_to_there() -> None:
    bench = Bench()
    bench.kv.values[1][0, 1, 9, 2] = np.nan
    assert restored(bench, request_of(19), request_of(19)) == 8


def test_cleared_gives_nothing() -> None:
    bench = Bench()
    digests = bench.reuse.digests(request_of(19))
    bench.reuse.keep(0, digests, prefilled=19)
    bench.reuse.clear()
    assert bench.reuse.restore(2, digests, prompt_tokens=19, prefilled=0) == 0


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
        slot, prefilled, digests = int(rng.integers(3)), 0, bench.reuse.digests(request)
        stop = int(rng.integers(1, len(ids) + 1))  # where a client may leave
        while prefilled < stop:
            cached = bench.reuse.restore(slot, digests, prompt_tokens=len(ids), prefilled=prefilled)
            hits += cached > prefilled
            prefilled, end = cached, min(len(ids), cached + int(rng.integers(1, 9)))
            for buffer in bench.kv.keys + bench.kv.values:
                buffer[slot, :, prefilled:end] = np.array(truth[prefilled:end], dtype=np.float32)[:, None]
            prefilled = end
            bench.reuse.keep(slot, digests, prefilled=prefilled)
        for buffer in bench.kv.keys + bench.kv.values:
            assert (buffer[slot, :, :prefilled] == np.array(truth[:prefilled])[:, None]).all()
    bench.reuse.check()
    figures = bench.reuse.figures()
    assert hits > 100
    assert figures.evicted_for_room > 100
    assert figures.held_blocks <= 12


def test_memory_is_flat_over_ten_thousand_prompts() -> None:
    bench = Bench(max_bytes=12 * BLOCK * Bench().kv.bytes_per_token)

    def serve(numbers: range) -> None:
        for number in numbers:
            request = request_of(13, ((0, 2),), [0, 0], keys=(number.to_bytes(4, "big"),))
            digests = bench.reuse.digests(request)
            prefilled = bench.reuse.restore(0, digests, prompt_tokens=13, prefilled=0)
            bench.reuse.keep(0, digests, prefilled=13)
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
