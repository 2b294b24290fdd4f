"""Results kept in this process by a digest of their key: bounded in bytes and age, found only by the whole key.

For one thread, or one event loop.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import takewhile
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Kept(Generic[Key, Value]):
    key: Key
    value: Value
    num_bytes: int
    cost_s: float  # what computing it took
    made_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFigures:
    """Since the start, but for what is held now."""

    lookups: int
    hits: int
    collisions: int  # entries of another key under the same digest: no hit
    held: int
    held_bytes: int
    max_bytes: int
    evicted_for_room: int
    evicted_by_age: int
    saved_s: float  # what computing the hits had taken


class Store(Generic[Key, Value]):
    """Least recently used goes first; what is older than `max_age_s` is never found, however often it was."""

    def __init__(
        self,
        *,
        max_bytes: int,
        max_age_s: float,
        digest: Callable[[Key], bytes],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_bytes, self._max_age_s = max_bytes, max_age_s
        self._digest, self._clock_s = digest, clock_s
        self._held: OrderedDict[bytes, Kept[Key, Value]] = OrderedDict()  # last used: at the end
        self._by_age: OrderedDict[bytes, float] = OrderedDict()  # oldest first
        self._held_bytes = 0
        self._lookups = self._hits = self._collisions = self._evicted_for_room = self._evicted_by_age = 0
        self._saved_s = 0.0

    @property
    def is_on(self) -> bool:
        """Whether there is room for anything at all."""
        return self._max_bytes > 0

    def find(self, key: Key) -> Kept[Key, Value] | None:
        """The entry whose key is equal field by field; counts as a use."""
        self.drop_expired()
        self._lookups += 1
        digest = self._digest(key)
        kept = self._held.get(digest)
        if kept is None:
            return None
        if kept.key != key:
            self._collisions += 1
            return None
        self._held.move_to_end(digest)
        self._hits += 1
        self._saved_s += kept.cost_s
        return kept

    def keep(self, key: Key, value: Value, num_bytes: int, *, cost_s: float, age_s: float = 0.0) -> None:
        """In place of what has the same digest; nothing that is too old, or alone larger than the whole store.

        `age_s` is how long ago it was made, elsewhere.
        """
        self.drop_expired()
        digest = self._digest(key)
        if digest in self._held:
            self._drop(digest)
        now_s = self._clock_s()
        made_s = now_s - age_s
        if num_bytes > self._max_bytes or made_s < now_s - self._max_age_s:
            return
        while self._held_bytes + num_bytes > self._max_bytes:
            self._drop(next(iter(self._held)))
            self._evicted_for_room += 1
        self._held[digest] = Kept(key, value, num_bytes, cost_s, made_s)
        younger = list(takewhile(lambda other: self._by_age[other] > made_s, reversed(self._by_age)))
        self._by_age[digest] = made_s
        for other in reversed(younger):
            self._by_age.move_to_end(other)
        self._held_bytes += num_bytes

    def drop_expired(self) -> None:
        """Forget what is too old; also called now and then, so that nothing is held longer for want of requests."""
        oldest_s = self._clock_s() - self._max_age_s
        while self._by_age:
            digest, made_s = next(iter(self._by_age.items()))
            if made_s >= oldest_s:
                return
            self._drop(digest)
            self._evicted_by_age += 1

    def clear(self) -> None:
        """Forget everything."""
        self._held.clear()
        self._by_age.clear()
        self._held_bytes = 0

    def figures(self) -> StoreFigures:
        return StoreFigures(
            lookups=self._lookups,
            hits=self._hits,
            collisions=self._collisions,
            held=len(self._held),
            held_bytes=self._held_bytes,
            max_bytes=self._max_bytes,
            evicted_for_room=self._evicted_for_room,
            evicted_by_age=self._evicted_by_age,
            saved_s=self._saved_s,
        )

    def _drop(self, digest: bytes) -> None:
        self._held_bytes -= self._held.pop(digest).num_bytes
        del self._by_age[digest]
