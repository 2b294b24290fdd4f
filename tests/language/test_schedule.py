from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tokenizers import Tokenizer, models

from proteus.errors import InvalidRequest, QueueFull, Unavailable
from proteus.language.generation import GenerationRequest
from proteus.language.kv_slots import KvSlots
from proteus.language.live_sequence import LiveSequence
from proteus.language.sampling import Sampling
from proteus.language.schedule import Schedule
from proteus.language.stream import Detokenizer

DETOKENIZER = Detokenizer(Tokenizer(models.BPE()))
NUM_SLOTS, MAX_QUEUE = 3, 2
keys = st.integers(0, 7).map(lambda number: bytes([number]))


def kv_slots(num_slots: int = NUM_SLOTS) -> KvSlots:
    return KvSlots(num_slots, num_layers=2, slot_shape=(1, 4, 2))


def sequence(key: bytes) -> LiveSequence:
    request = GenerationRequest(
        request_key=key,
        input_ids=np.ones(2, dtype=np.int32),
        visual_tokens=None,
        visual_spans=(),
        sampling=Sampling(),
    )
    return LiveSequence(
        request, lambda event: None, detokenizer=DETOKENIZER, eos_token_ids=frozenset(), context_tokens=8
    )


class ScheduleMachine(RuleBasedStateMachine):
    """Any order of calls, against a model of who waits, who runs and who is to be stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.slots = kv_slots()
        self.schedule = Schedule(self.slots, max_queue=MAX_QUEUE)
        self.waiting: list[LiveSequence] = []
        self.running: dict[int, LiveSequence] = {}
        self.stops: set[bytes] = set()  # of keys in flight or not

    def in_flight(self) -> set[bytes]:
        return {s.request.request_key for s in itertools.chain(self.waiting, self.running.values())}

    @rule(key=keys)
    def submit(self, key: bytes) -> None:
        new = sequence(key)
        if key in self.in_flight():
            with pytest.raises(InvalidRequest):
                self.schedule.submit(new)
        elif len(self.in_flight()) == NUM_SLOTS + MAX_QUEUE:
            with pytest.raises(QueueFull):
                self.schedule.submit(new)
        else:
            self.schedule.submit(new)
            self.waiting.append(new)

    @rule(key=keys)
    def cancel(self, key: bytes) -> None:
        self.schedule.cancel(key)
        self.stops.add(key)

    @rule()
    def take_cancelled(self) -> None:
        taken = {s.request.request_key for s in self.schedule.take_cancelled()}
        assert taken == self.stops & self.in_flight()
        self.stops -= taken
        self.waiting = [s for s in self.waiting if s.request.request_key not in taken]
        self.running = {slot: s for slot, s in self.running.items() if s.request.request_key not in taken}

    @rule()
    def admit(self) -> None:
        admitted = self.schedule.admit()
        if not self.waiting or len(self.running) == NUM_SLOTS:
            assert admitted is None
        else:
            assert admitted is not None
            slot, who = admitted
            assert who is self.waiting.pop(0)
            assert slot == min(set(range(NUM_SLOTS)) - self.running.keys())
            self.running[slot] = who

    @rule(slot=st.integers(0, NUM_SLOTS - 1))
    def end(self, slot: int) -> None:
        if (who := self.running.pop(slot, None)) is not None:
            self.schedule.end(who)
            self.stops.discard(who.request.request_key)

    @invariant()
    def adds_up(self) -> None:
        self.schedule.check()
        assert dict(self.schedule.running()) == self.running
        assert self.schedule.num_in_flight == len(self.in_flight())
        assert self.slots.num_free == NUM_SLOTS - len(self.running)


ScheduleMachine.TestCase.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
test_any_order_of_calls_adds_up = ScheduleMachine.TestCase


def test_a_closed_schedule_takes_nothing_and_has_no_work() -> None:
    schedule = Schedule(kv_slots(), max_queue=MAX_QUEUE)
    waiting, running = sequence(b"a"), sequence(b"b")
    schedule.submit(running)
    schedule.admit()
    schedule.submit(waiting)
    assert schedule.wait_for_work()
    schedule.close()
    assert not schedule.wait_for_work()
    with pytest.raises(Unavailable):
        schedule.submit(sequence(b"c"))
    assert set(schedule.take_all()) == {waiting, running}
    schedule.check()
    assert schedule.num_in_flight == 0


def test_a_stop_that_came_first_is_spent_by_its_request() -> None:
    schedule = Schedule(kv_slots(), max_queue=MAX_QUEUE)
    schedule.cancel(b"a")
    first = sequence(b"a")
    schedule.submit(first)
    assert schedule.take_cancelled() == [first]
    schedule.submit(sequence(b"a"))
    assert schedule.take_cancelled() == []


def test_check_sees_a_slot_that_is_free_twice() -> None:
    slots = kv_slots()
    slots.release(0)
    with pytest.raises(RuntimeError, match="free slots"):
        slots.check()


def test_check_sees_a_slot_that_nobody_holds() -> None:
    slots = kv_slots()
    schedule = Schedule(slots, max_queue=MAX_QUEUE)
    slots.take()
    with pytest.raises(RuntimeError, match="0 slots taken, 2 free"):
        schedule.check()


def test_slots_lie_side_by_side_so_that_the_first_ones_are_one_batch() -> None:
    slots = kv_slots(4)
    assert all(buffer.flags.c_contiguous and buffer.shape == (4, 1, 4, 2) for buffer in (*slots.keys, *slots.values))
    assert len(slots.keys) == len(slots.values) == 2
