"""Memory of the sequences being decoded: one slot each, its keys and values at a fixed place.

G key/value heads, T tokens of context, d width of a head, L layers. Who is in a slot is not known here.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

KV_DTYPE = np.float32
KV_VALUE_BYTES = np.dtype(KV_DTYPE).itemsize


class KvSlots:
    """Slots of [G, T, d] per layer; who is in them is the scheduler's to know."""

    def __init__(self, num_slots: int, num_layers: int, slot_shape: tuple[int, int, int]) -> None:
        self.num_slots = num_slots
        self.context_tokens = slot_shape[1]
        # One piece of memory, so that a block of all layers moves in one copy. Written to once: from then on what is
        # allocated is resident, and does not grow with use.
        self._memory = np.empty((2, num_layers, num_slots, *slot_shape), dtype=KV_DTYPE)
        self._memory.fill(0)
        self.keys, self.values = list(self._memory[0]), list(self._memory[1])  # by layer: [slots, G, T, d]

    @property
    def allocated_bytes(self) -> int:
        return self._memory.nbytes

    @property
    def bytes_per_token(self) -> int:
        """Of all layers: 2 · L · G · d · bytes of a value."""
        return self._memory.nbytes // (self.num_slots * self.context_tokens)

    def block_shape(self, num_tokens: int) -> tuple[int, ...]:
        """Of `view`: keys and values, L, G, `num_tokens`, d."""
        _, num_layers, _, num_heads, _, width = self._memory.shape
        return (2, num_layers, num_heads, num_tokens, width)

    def view(self, slot: int, start: int, stop: int) -> npt.NDArray[np.float32]:
        """Keys and values of the places start … stop - 1 of a slot: the memory itself, not a copy."""
        if not 0 <= start <= stop <= self.context_tokens:
            raise IndexError(f"places {start} to {stop} of {self.context_tokens}")
        return self._memory[:, :, slot, :, start:stop]

    def move(self, source: int, slot: int, num_tokens: int) -> None:
        """Copy the first `num_tokens` places of a slot to another."""
        self.view(slot, 0, num_tokens)[...] = self.view(source, 0, num_tokens)

    def write(self, slot: int, start: int, block: npt.NDArray[np.float32]) -> None:
        """Copy a block into a slot, from place `start` on."""
        self.view(slot, start, start + block.shape[3])[...] = block
