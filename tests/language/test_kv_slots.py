from __future__ import annotations

import numpy as np
import pytest

from proteus.families.language_model import LanguageModel
from proteus.language.kv_slots import KV_VALUE_BYTES, KvSlots

SLOTS, LAYERS, HEADS, CONTEXT, WIDTH = 3, 2, 2, 8, 4


def slots() -> KvSlots:
    return KvSlots(SLOTS, LAYERS, (HEADS, CONTEXT, WIDTH))


def numbered(kv: KvSlots) -> KvSlots:
    """Every value in the memory is another one."""
    size = kv.keys[0].size
    for number, buffer in enumerate(kv.keys + kv.values):
        buffer[...] = np.arange(number * size, (number + 1) * size).reshape(buffer.shape)
    return kv


@pytest.mark.parametrize("layers", [1, 4, 32])
@pytest.mark.parametrize(("heads", "width"), [(1, 64), (2, 32), (8, 128)])
def test_bytes_are_those_of_the_formula(layers: int, heads: int, width: int) -> None:
    language = LanguageModel(
        layers=layers, kv_heads=heads, head_dim=width, hidden_size=heads * width, context_tokens=CONTEXT
    )
    kv = KvSlots(SLOTS, layers, (heads, CONTEXT, width))
    assert kv.bytes_per_token == language.self_kv_bytes(1, KV_VALUE_BYTES)
    assert kv.allocated_bytes == language.self_kv_bytes(SLOTS * CONTEXT, KV_VALUE_BYTES)
    assert kv.allocated_bytes == sum(buffer.nbytes for buffer in kv.keys + kv.values)


def test_each_layer_is_contiguous_from_any_slot_on() -> None:
    kv = slots()
    for buffer in kv.keys + kv.values:
        assert buffer.shape == (SLOTS, HEADS, CONTEXT, WIDTH)
        assert buffer[1:].flags.c_contiguous


def test_memory_is_resident_from_the_start() -> None:
    def resident_bytes() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096

    before = resident_bytes()
    kv = KvSlots(8, 4, (2, 4096, 64))
    assert resident_bytes() - before > 0.9 * kv.allocated_bytes


def test_a_view_is_keys_and_values_of_every_layer() -> None:
    kv = numbered(slots())
    view = kv.view(1, 2, 5)
    assert view.shape == kv.block_shape(3) == (2, LAYERS, HEADS, 3, WIDTH)
    for layer in range(LAYERS):
        assert np.array_equal(view[0, layer], kv.keys[layer][1, :, 2:5])
        assert np.array_equal(view[1, layer], kv.values[layer][1, :, 2:5])


def test_a_block_written_into_another_slot_is_the_same_and_changes_nothing_else() -> None:
    kv = numbered(slots())
    before = [buffer.copy() for buffer in kv.keys + kv.values]
    kv.write(2, 4, kv.view(0, 1, 4).copy())
    for buffer, old in zip(kv.keys + kv.values, before, strict=True):
        assert np.array_equal(buffer[2, :, 4:7], old[0, :, 1:4])
        buffer[2, :, 4:7] = old[2, :, 4:7]
        assert np.array_equal(buffer, old)


@pytest.mark.parametrize(("start", "stop"), [(-1, 1), (CONTEXT, CONTEXT + 1), (3, 2)])
def test_places_outside_the_context_are_refused(start: int, stop: int) -> None:
    kv = slots()
    with pytest.raises(IndexError):
        kv.view(0, start, stop)


def test_a_block_of_one_token_is_not_lost_beyond_the_context() -> None:
    kv = slots()
    with pytest.raises(IndexError):
        kv.write(0, CONTEXT, np.ones(kv.block_shape(1), dtype=np.float32))
