"""A heap whose items can be taken out from anywhere."""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)
FEW = 8


class Heap(Generic[Item]):
    """Items by (order, number). An item that is discarded leaves its entry behind; such entries are swept out when they
    outnumber the others, so memory is proportional to the items and every operation is O(log n), amortised.
    """

    def __init__(self) -> None:
        self._keys: dict[Item, tuple[float, int]] = {}
        self._entries: list[tuple[tuple[float, int], Item]] = []

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, item: Item, *, order: float, number: int) -> None:
        """`number` breaks ties of `order`: no two items share one. `item` must not be in already."""
        key = self._keys[item] = (order, number)
        heapq.heappush(self._entries, (key, item))

    def discard(self, item: Item) -> None:
        """Takes `item` out if it is in."""
        if self._keys.pop(item, None) is not None and self.num_entries > 2 * len(self) + FEW:
            self._entries = [(key, kept) for kept, key in self._keys.items()]
            heapq.heapify(self._entries)

    def first(self) -> Item | None:
        """The item with the least key, left in."""
        while self._entries:
            key, item = self._entries[0]
            if self._keys.get(item) is key:
                return item
            heapq.heappop(self._entries)
        return None

    def order_of(self, item: Item) -> float:
        """The order `item` was added with."""
        return self._keys[item][0]

    @property
    def num_entries(self) -> int:
        """Entries in memory, those of discarded items included."""
        return len(self._entries)
