"""Who waits, who decodes and in which slot, and who is to be stopped. The only state that threads share.

Every change is made under the lock. The engine's thread looks without it whether there is anything to change: between
two steps it mostly finds nothing, and what it misses it finds after the next one.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque

from proteus.errors import InvalidRequest, QueueFull, Unavailable
from proteus.language.kv_slots import KvSlots
from proteus.language.live_sequence import LiveSequence

MAX_REMEMBERED_STOPS = 1024  # of keys that are not in flight (yet)


class Schedule:
    """First come, first served."""

    def __init__(self, slots: KvSlots, *, max_queue: int) -> None:
        self._slots, self._max_queue = slots, max_queue
        self._changed = threading.Condition()
        self._waiting: deque[LiveSequence] = deque()
        self._running: dict[int, LiveSequence] = {}  # by slot
        self._in_flight: dict[bytes, LiveSequence] = {}  # by request key
        self._to_stop: set[bytes] = set()  # keys in flight
        self._remembered: OrderedDict[bytes, None] = OrderedDict()  # keys to stop on arrival, oldest first
        self._closed = False

    @property
    def num_in_flight(self) -> int:
        with self._changed:
            return len(self._in_flight)

    def submit(self, sequence: LiveSequence) -> None:
        """Queue it; raises QueueFull, InvalidRequest (key in use) or Unavailable (closed) and changes nothing then."""
        key = sequence.request.request_key
        with self._changed:
            if self._closed:
                raise Unavailable("the language model is stopping", fix="try again in some seconds")
            if key in self._in_flight:
                raise InvalidRequest("request_key is in use", fix="give each request a random key of its own")
            limit = self._slots.num_slots + self._max_queue
            if len(self._in_flight) >= limit:
                raise QueueFull(
                    f"{len(self._in_flight)} requests are decoding or waiting",
                    limit=f"[llm] slots + max_queue = {limit}",
                )
            self._waiting.append(sequence)
            self._in_flight[key] = sequence
            if key in self._remembered:
                del self._remembered[key]
                self._to_stop.add(key)
            self._changed.notify()

    def cancel(self, request_key: bytes) -> None:
        """Mark for the next iteration. A key that is not in flight is stopped should it arrive."""
        with self._changed:
            if request_key in self._in_flight:
                self._to_stop.add(request_key)
                self._changed.notify()
                return
            self._remembered[request_key] = None
            if len(self._remembered) > MAX_REMEMBERED_STOPS:
                self._remembered.popitem(last=False)

    def wait_for_work(self) -> bool:
        """Block until something is in flight: True; or until closed: False."""
        if self._in_flight and not self._closed:
            return True
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._in_flight)
            return not self._closed

    def take_cancelled(self) -> list[LiveSequence]:
        """Sequences to stop, already out of queue and slots."""
        if not self._to_stop:
            return []
        with self._changed:
            stopped = [self._in_flight[key] for key in self._to_stop]
            for sequence in stopped:
                self._remove(sequence)
            return stopped

    def admit(self) -> tuple[int, LiveSequence] | None:
        """The first in the queue and the slot it got; None when nobody waits or no slot is free."""
        if not self._waiting or not self._slots.num_free:
            return None
        with self._changed:
            slot, sequence = self._slots.take(), self._waiting.popleft()
            self._running[slot] = sequence
            return slot, sequence

    def running(self) -> list[tuple[int, LiveSequence]]:
        """Slots and who is in them; only the engine's thread changes it."""
        return list(self._running.items())

    def end(self, sequence: LiveSequence) -> None:
        """Free its place."""
        with self._changed:
            self._remove(sequence)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def take_all(self) -> list[LiveSequence]:
        """Close, and hand out everything in flight."""
        with self._changed:
            self._closed = True
            sequences = list(self._in_flight.values())
            for sequence in sequences:
                self._remove(sequence)
            return sequences

    def check(self) -> None:
        """Raises RuntimeError unless each sequence in flight waits or decodes, and each slot is taken or free."""
        with self._changed:
            self._slots.check()
            placed = [*self._waiting, *self._running.values()]
            if len(placed) != len(self._in_flight) or {id(s) for s in placed} != set(map(id, self._in_flight.values())):
                raise RuntimeError(f"{len(placed)} sequences have a place, {len(self._in_flight)} are in flight")
            if len(self._running) + self._slots.num_free != self._slots.num_slots:
                raise RuntimeError(f"{len(self._running)} slots taken, {self._slots.num_free} free")
            if not self._to_stop <= self._in_flight.keys():
                raise RuntimeError("a stop is pending for a sequence that is gone")

    def _remove(self, sequence: LiveSequence) -> None:
        key = sequence.request.request_key
        del self._in_flight[key]
        self._to_stop.discard(key)
        for slot, running in self._running.items():
            if running is sequence:
                del self._running[slot]
                self._slots.release(slot)
                return
        self._waiting.remove(sequence)
