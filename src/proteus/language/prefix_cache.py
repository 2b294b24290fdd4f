"""Keys and values of prompts that were computed, kept by the links of their chain (prefix.py).

Blocks form trees: a block is held only while the block before it is, and is found on the way from the first, each link
compared as a whole. The memory is taken once, at the start. One thread uses it; a block that is given is valid until
the next `keep`. Whose prompts they are is in the links.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from proteus.language.kv_slots import KV_DTYPE, KV_VALUE_BYTES
from proteus.language.prefix import Link
from proteus.limits import PrefixCache as PrefixLimits

Block = npt.NDArray[np.float32]
MOST_EXPIRED_AT_ONCE = 64  # dropped in one call, which bounds its time; they are not found even before that


@dataclass(slots=True)
class Held:
    row: int  # in the pool
    parent: Link | None  # of the block before
    used_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixFigures:
    """What became of the prompts since the start, and what is held now."""

    lookups: int  # prompts
    hits: int  # prompts that got at least one block
    looked_up_tokens: int
    hit_tokens: int
    held_blocks: int
    held_bytes: int
    capacity_bytes: int  # allocated, and resident from the start
    kept_blocks: int
    evicted_for_room: int  # blocks
    evicted_by_age: int


class PrefixCache:
    """Least recently used goes first, and leaves before what they stand on."""

    def __init__(self, limits: PrefixLimits, *, block_shape: Sequence[int], clock_s: Callable[[], float]) -> None:
        self._block_bytes = int(np.prod(block_shape)) * KV_VALUE_BYTES
        num_blocks = limits.max_bytes // self._block_bytes
        self._pool = np.empty((num_blocks, *block_shape), dtype=KV_DTYPE)
        self._pool.fill(0)  # what is allocated is resident from now on
        self._free = list(range(num_blocks))[::-1]
        # Oldest use first. A use moves a whole chain, its deepest block first: so the first of all is always a leaf.
        self._held: OrderedDict[Link, Held] = OrderedDict()
        self._max_age_s = limits.max_age_s
        self._clock_s = clock_s
        self._lookups = self._hits = self._looked_up_tokens = self._hit_tokens = 0
        self._kept = self._evicted_for_room = self._evicted_by_age = 0

    @property
    def is_on(self) -> bool:
        """Whether there is room for a block at all; where not, nobody needs to compute a chain."""
        return len(self._pool) > 0

    def find(self, chain: Sequence[Link], start: int) -> list[Block]:
        """The blocks of a chain from number `start` on, as far as they are held without a gap. They count as used."""
        oldest_s = self._clock_s() - self._max_age_s
        blocks: list[Block] = []
        for number, link in enumerate(chain):
            held = self._held.get(link)
            if held is None or held.used_s < oldest_s:
                break
            if number >= start:
                blocks.append(self._pool[held.row])
        if blocks:
            self._use(chain[: start + len(blocks)])
        return blocks

    def keep(self, chain: Sequence[Link], num_blocks: int, block_at: Callable[[int], Block]) -> None:
        """Hold the first blocks of a chain; `block_at(number)` gives one that is not held yet, and it is copied.

        Stops at a block that holds a value that is not finite, where the chain alone fills the memory, and at a link
        that is held on another chain: digests that collide make no entry.
        """
        if not self.is_on:
            return
        self._drop_expired()
        number = self._num_held(chain[:num_blocks])
        self._use(chain[:number])
        try:
            while number < num_blocks and chain[number] not in self._held and self._make_room(number):
                row = self._free[-1]
                self._pool[row] = block_at(number)
                if not np.isfinite(self._pool[row]).all():
                    break
                self._held[chain[number]] = Held(self._free.pop(), chain[number - 1] if number else None, 0.0)
                self._kept += 1
                number += 1
        finally:
            self._use(chain[:number])

    def count(self, *, prompt_tokens: int, cached_tokens: int) -> None:
        """Note a prompt that was looked up, once it is whole: how much of it `find` gave."""
        self._lookups += 1
        self._hits += cached_tokens > 0
        self._looked_up_tokens += prompt_tokens
        self._hit_tokens += cached_tokens

    def clear(self) -> None:
        """Forget everything that is held."""
        self._held.clear()
        self._free = list(range(len(self._pool)))[::-1]

    def figures(self) -> PrefixFigures:
        return PrefixFigures(
            lookups=self._lookups,
            hits=self._hits,
            looked_up_tokens=self._looked_up_tokens,
            hit_tokens=self._hit_tokens,
            held_blocks=len(self._held),
            held_bytes=len(self._held) * self._block_bytes,
            capacity_bytes=self._pool.nbytes,
            kept_blocks=self._kept,
            evicted_for_room=self._evicted_for_room,
            evicted_by_age=self._evicted_by_age,
        )

    def check(self) -> None:
        """Raises RuntimeError unless each row is free or held once, and no block is newer than the one before it."""
        rows = [held.row for held in self._held.values()] + self._free
        if sorted(rows) != list(range(len(self._pool))):
            raise RuntimeError(f"rows {sorted(rows)} of {len(self._pool)}")
        newer: set[Link] = set()
        used_s = float("inf")
        for link, held in reversed(self._held.items()):
            if held.parent is not None and held.parent not in newer:
                raise RuntimeError(f"block {link.digest.hex()} outlives the one before it")
            if held.used_s > used_s:
                raise RuntimeError(f"block {link.digest.hex()} is out of the order of use")
            newer.add(link)
            used_s = held.used_s

    def _num_held(self, chain: Sequence[Link]) -> int:
        for number, link in enumerate(chain):
            if link not in self._held:
                return number
        return len(chain)

    def _use(self, chain: Sequence[Link]) -> None:
        now_s = self._clock_s()
        for link in reversed(chain):
            self._held[link].used_s = now_s
            self._held.move_to_end(link)

    def _make_room(self, num_own: int) -> bool:
        """Whether a row is free now. The blocks that the chain itself has so far are the last to have been used."""
        if self._free:
            return True
        if len(self._held) == num_own:
            return False
        self._drop_oldest()
        return True

    def _drop_expired(self) -> None:
        oldest_s = self._clock_s() - self._max_age_s
        for _ in range(MOST_EXPIRED_AT_ONCE):
            if not self._held or next(iter(self._held.values())).used_s >= oldest_s:
                return
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        _, held = self._held.popitem(last=False)
        self._free.append(held.row)
        if held.used_s < self._clock_s() - self._max_age_s:
            self._evicted_by_age += 1
        else:
            self._evicted_for_room += 1
