"""Slots, chunks and steps of the decoder on the graph of a tiny random checkpoint; a whole prefill is the judge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proteus.deployment import DeploymentError
from proteus.language.kv_slots import KvSlots
from proteus.language.onnx_decoder import DecoderManifest, Floats, OnnxDecoder
from tests.language import plant

SLOTS, CONTEXT, IMAGE = 6, 400, 3
RNG = np.random.default_rng(5)
IDS = RNG.integers(8, 380, CONTEXT)
PLACES = np.flatnonzero(RNG.random(CONTEXT) < 0.3)
ROWS = RNG.standard_normal((len(PLACES), 64)).astype(np.float32)


class Memory:
    """A decoder, and the slots that it writes."""

    def __init__(self, folder: Path) -> None:
        manifest = DecoderManifest.load(folder)
        self.slots = KvSlots(SLOTS, manifest.num_layers, (manifest.num_kv_heads, CONTEXT, manifest.head_dim))
        self.decoder = OnnxDecoder(folder, manifest, self.slots, threads=1)

    def fill(self, slot: int, chunks: Sequence[int], start: int = 0) -> Floats:
        """The first tokens of IDS with their visual rows, in chunks; the logits of the last."""
        for length in chunks:
            kept = (start <= PLACES) & (start + length > PLACES)
            ids = IDS[start : start + length]
            logits = self.decoder.prefill(slot, ids, start, ROWS[kept], PLACES[kept] - start)
            start += length
        return logits

    def held(self, slot: int, num_tokens: int) -> npt.NDArray[np.float32]:
        return np.stack([*self.slots.keys, *self.slots.values])[:, slot, :, :num_tokens]


@pytest.fixture(scope="module")
def memory(llm_folder: Path) -> Memory:
    return Memory(llm_folder)


def cuts(num_tokens: int) -> st.SearchStrategy[list[int]]:
    """Chunks of two tokens or more that make up a prompt."""

    def chunks(at: list[int]) -> list[int]:
        places = [0]
        for place in sorted(at):
            if place - places[-1] >= 2 and num_tokens - place >= 2:
                places.append(place)
        return [int(length) for length in np.diff([*places, num_tokens])]

    return st.lists(st.integers(2, max(2, num_tokens - 2)), max_size=8).map(chunks)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_cut_of_a_prompt_gives_the_same_bits(memory: Memory, data: st.DataObject) -> None:
    num_tokens = data.draw(st.sampled_from([2, 3, 17, 33, 64, 65, 66, 129, 193, 200]))
    want, kept = memory.fill(0, [num_tokens]), memory.held(0, num_tokens).copy()
    got = memory.fill(1, data.draw(cuts(num_tokens)))
    assert np.array_equal(got, want)
    assert np.array_equal(memory.held(1, num_tokens), kept)


@pytest.mark.parametrize("num_tokens", [33, 65, 97])
def test_no_token_is_left_alone_in_the_attention_operators_last_block(memory: Memory, num_tokens: int) -> None:
    want = memory.fill(0, [num_tokens - 30, 30])
    assert np.array_equal(memory.fill(1, [num_tokens]), want)
    assert np.array_equal(memory.held(1, num_tokens), memory.held(0, num_tokens))


def test_a_chunk_of_one_token_gives_the_same_answer(memory: Memory) -> None:
    want = memory.fill(0, [40])
    got = memory.fill(1, [17, 1, 21, 1])
    assert got.argmax() == want.argmax()
    np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max())


def test_visual_rows_stand_for_ids_whatever_the_ids_are(memory: Memory) -> None:
    want = memory.fill(0, [50])
    ids = IDS[:50].copy()
    ids[PLACES[PLACES < 50]] = IMAGE
    kept = PLACES < 50
    assert np.array_equal(memory.decoder.prefill(1, ids, 0, ROWS[kept], PLACES[kept]), want)
    assert not np.array_equal(memory.decoder.prefill(1, ids, 0, ROWS[:0], PLACES[:0]), want)


def test_a_step_is_the_prefill_of_one_more_token(memory: Memory) -> None:
    last = int(np.flatnonzero(~np.isin(np.arange(40, CONTEXT), PLACES))[0]) + 40  # a place that no visual row takes
    want = memory.fill(0, [last + 1])
    memory.fill(2, [last])
    got = memory.decoder.step(2, IDS[last : last + 1], np.array([last], dtype=np.int32))
    assert got.shape == (1, len(want))
    np.testing.assert_allclose(got[0], want, atol=1e-4 * np.abs(want).max())


@pytest.mark.parametrize(("first", "count"), [(0, 6), (0, 3), (2, 1), (2, 4), (5, 1)])
def test_a_step_of_any_range_gives_each_slot_its_own_bits_and_touches_no_other(
    memory: Memory, first: int, count: int
) -> None:
    lengths = np.array([31, 7, 64, 2, 120, 65], dtype=np.int32)
    tokens = IDS[200 : 200 + SLOTS]
    alone = []
    for slot in range(SLOTS):
        memory.fill(slot, [int(lengths[slot])])
        alone.append(memory.decoder.step(slot, tokens[slot : slot + 1], lengths[slot : slot + 1]).copy())
    before = [buffer.copy() for buffer in (*memory.slots.keys, *memory.slots.values)]
    chosen = slice(first, first + count)
    got = memory.decoder.step(first, tokens[chosen], lengths[chosen])
    assert np.array_equal(got, np.concatenate(alone[chosen]))
    after = [*memory.slots.keys, *memory.slots.values]
    assert all(np.array_equal(old, new) for old, new in zip(before, after, strict=True))  # the same step again


def test_a_row_that_nobody_decodes_in_loses_nothing(memory: Memory) -> None:
    """Slot 1 waits in the middle of its prompt while its neighbours decode."""
    want, kept = memory.fill(3, [90]), memory.held(3, 90).copy()
    for slot in (0, 2):
        memory.fill(slot, [20])
    memory.fill(1, [50])
    for step in range(5):
        memory.decoder.step(0, IDS[:3], np.array([20 + step, 50, 20 + step], dtype=np.int32))
    assert np.array_equal(memory.fill(1, [40], start=50), want)
    assert np.array_equal(memory.held(1, 90), kept)


def test_a_prefill_gives_way_even_where_it_was_asked_before_it_began_and_can_be_done_anew(memory: Memory) -> None:
    want, kept = memory.fill(0, [65]), memory.held(0, 65).copy()
    memory.fill(1, [20])
    memory.decoder.give_way()
    near = PLACES[(PLACES >= 20) & (PLACES < 65)]
    rows = ROWS[np.searchsorted(PLACES, near)]
    for _ in range(2):
        assert memory.decoder.prefill(1, IDS[20:65], 20, rows, near - 20) is None
    memory.decoder.stay()
    assert np.array_equal(memory.held(1, 20), kept[..., :20, :])
    assert np.array_equal(memory.fill(1, [45], start=20), want)
    assert np.array_equal(memory.held(1, 65), kept)


def test_logits_of_a_prefill_outlive_the_next_call(memory: Memory) -> None:
    first = memory.fill(0, [30])
    kept = first.copy()
    memory.fill(1, [35])
    memory.decoder.step(0, IDS[:2], np.array([30, 35], dtype=np.int32))
    assert np.array_equal(first, kept)


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda folder: (folder / "export.json").unlink(), "export.json is missing or wrong; fix: export"),
        (lambda folder: plant.set_manifest(folder, format=1), "has format 1; limit: format = 2; fix: export"),
    ],
)
def test_an_export_of_another_kind_is_refused(
    llm_folder: Path, tmp_path: Path, spoil: Callable[[Path], object], text: str
) -> None:
    folder = plant.copy(llm_folder, tmp_path / "1")
    spoil(folder)
    with pytest.raises(DeploymentError, match=text):
        DecoderManifest.load(folder)


def test_a_graph_that_cannot_be_read_is_named(llm_folder: Path, tmp_path: Path) -> None:
    folder = plant.copy(llm_folder, tmp_path / "1")
    (folder / "decoder.onnx").write_bytes(b"no graph")
    manifest = DecoderManifest.load(folder)
    slots = KvSlots(1, manifest.num_layers, (manifest.num_kv_heads, 8, manifest.head_dim))
    with pytest.raises(DeploymentError, match="decoder.onnx cannot be loaded; fix: export the checkpoint again"):
        OnnxDecoder(folder, manifest, slots, threads=1)
