"""Memory of the sequences being decoded: one slot each, its keys and values at a fixed place.

G key/value heads, T tokens of context, d width of a head. Who is in a slot is not known here.
"""

from __future__ import annotations

import heapq

import numpy as np

KV_DTYPE = np.float32
KV_VALUE_BYTES = np.dtype(KV_DTYPE).itemsize


class KvSlots:
    """Slots of [G, T, d] per layer. The lowest free slot is taken first, which keeps the decode batch short."""

    def __init__(self, num_slots: int, num_layers: int, slot_shape: tuple[int, int, int]) -> None:
        self.num_slots = num_slots
        self.keys, self.values = (
            [np.zeros((num_slots, *slot_shape), dtype=KV_DTYPE) for _ in range(num_layers)] for _ in range(2)
        )
        self._free = list(range(num_slots))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self) -> int:
        """The lowest free slot; raises IndexError when there is none."""
        return heapq.heappop(self._free)

    def release(self, slot: int) -> None:
        heapq.heappush(self._free, slot)

    def check(self) -> None:
        """Raises RuntimeError unless every free slot is a slot and is free once."""
        if len(set(self._free)) != len(self._free) or not set(self._free) <= set(range(self.num_slots)):
            raise RuntimeError(f"free slots {sorted(self._free)} of {self.num_slots}")
