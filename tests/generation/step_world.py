"""A step batch with a denoiser that computes nothing, and a plain model of who waits and runs that judges each turn."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

import pytest

from proteus.errors import DeadlineExceeded, InvalidRequest, QueueFull
from proteus.generation.bucket import Drawing, Size
from proteus.generation.step_batch import StepBatch, Turn
from proteus.limits import Denoiser, LatencyClass

KEYS = count()
SIZES: tuple[Size, ...] = ((8, 8), (8, 12), (12, 12), (16, 16))
NEVER_AGED_MS = 10**9


def limits_of(
    *, max_rows: int = 8, live_images: int = 4, max_queue: int = 8, aging_ms: int = NEVER_AGED_MS
) -> Denoiser:
    return Denoiser(max_rows=max_rows, live_images=live_images, max_queue=max_queue, aging_ms=aging_ms, threads=1)


def drawing_of(
    size: Size = (8, 8),
    *,
    rows: int = 2,
    calls: int = 4,
    tenant: str = "ann",
    latency_class: LatencyClass = "media",
    deadline_s: float | None = None,
    key: bytes | None = None,
) -> Drawing:
    return Drawing(
        key=next(KEYS).to_bytes(8) if key is None else key,
        size=size,
        rows=rows,
        evaluations=rows * calls,
        latency_class=latency_class,
        tenant=tenant,
        deadline_s=deadline_s,
    )


@dataclass
class World:
    """`fails` is asked of each picture of a call whether it fails in it."""

    limits: Denoiser
    now_s: float = 100.0
    waiting: list[Drawing] = field(default_factory=list)
    live: list[Drawing] = field(default_factory=list)
    done: list[Drawing] = field(default_factory=list)
    failed: list[Drawing] = field(default_factory=list)
    cancels: set[bytes] = field(default_factory=set)  # keys, in flight or not
    computed: Counter[Drawing] = field(default_factory=Counter)  # rows
    cost: Counter[Size] = field(default_factory=Counter)
    stepped_s: dict[Drawing, float] = field(default_factory=dict)
    fails: Callable[[Drawing], bool] = field(default=lambda drawing: False)

    def __post_init__(self) -> None:
        self.batch = StepBatch(self.limits)

    @property
    def in_flight(self) -> list[Drawing]:
        return self.waiting + self.live

    def submit(self, *drawings: Drawing) -> None:
        """Refused exactly where it should be."""
        for drawing in drawings:
            error = self._expected_error(drawing)
            if error is None:
                self.batch.submit(drawing, self.now_s)
                self.waiting.append(drawing)
            else:
                with pytest.raises(error):
                    self.batch.submit(drawing, self.now_s)
        self.check()

    def cancel(self, key: bytes) -> None:
        self.batch.cancel(key)
        self.cancels.add(key)
        self.check()

    def run(self, turns: int = 1, *, call_s: float = 0.01) -> Turn:
        for _ in range(turns):
            turn = self.batch.next(self.now_s)
            self._judge(turn)
            self.now_s += call_s
            self._compute(turn)
            self.check()
        return turn

    def drain(self) -> None:
        """Until nothing is in flight: no turn is empty, so as many turns as there are rows left are enough."""
        for _ in range(sum(drawing.evaluations for drawing in self.in_flight) + 1):
            if not self.batch.num_in_flight:
                break
            self.run()
        assert self.in_flight == [] and self.batch.num_in_flight == 0
        self.run()
        assert all(self.computed[drawing] == drawing.evaluations for drawing in self.done)

    def check(self) -> None:
        self.batch.check()
        assert self.batch.num_in_flight == len(self.in_flight)

    def live_of(self, size: Size) -> list[Drawing]:
        return [drawing for drawing in self.live if drawing.size == size]

    def waiting_of(self, size: Size) -> list[Drawing]:
        return [drawing for drawing in self.waiting if drawing.size == size]

    def _expected_error(self, drawing: Drawing) -> type[Exception] | None:
        if any(other.key == drawing.key for other in self.in_flight):
            return InvalidRequest
        numbers = Counter(other.size for other in self.in_flight)
        places = self.limits.live_images
        num_without = sum(max(0, number - places) for number in numbers.values())
        if numbers[drawing.size] >= places and num_without >= self.limits.max_queue:
            return QueueFull
        if drawing.deadline_s is not None and drawing.deadline_s <= self.now_s:
            return DeadlineExceeded
        return None

    def _judge(self, turn: Turn) -> None:
        self._judge_ends(turn)
        self._judge_places()
        self._judge_call(turn)

    def _judge_ends(self, turn: Turn) -> None:
        assert set(turn.cancelled) == {each for each in self.in_flight if each.key in self.cancels}
        self.cancels -= {each.key for each in turn.cancelled}
        late = {
            each
            for each in self.waiting
            if each not in turn.cancelled and each.deadline_s is not None and each.deadline_s <= self.now_s
        }
        assert {each for each, _ in turn.refused} == late
        assert all(isinstance(error, DeadlineExceeded) for _, error in turn.refused)
        gone = late.union(turn.cancelled)
        self.waiting = [each for each in self.waiting if each not in gone]
        self.live = [each for each in self.live if each not in gone]

    def _judge_places(self) -> None:
        placed = [drawing for drawing in self.waiting if drawing.is_live]
        for drawing in placed:
            ahead = [other for other in self.waiting if _same_line(other, drawing)]
            assert ahead[0] is drawing, "out of order within a tenant, class and size"
            self.waiting.remove(drawing)
            self.live.append(drawing)
            self.stepped_s[drawing] = self.now_s
        for size in SIZES:
            assert len(self.live_of(size)) <= self.limits.live_images
            assert len(self.live_of(size)) == self.limits.live_images or not self.waiting_of(size)

    def _judge_call(self, turn: Turn) -> None:
        call = turn.call
        assert bool(call) == bool(self.live), "an empty call, or pictures that are not in flight"
        if not call:
            return
        size = call[0].size
        assert len(set(call)) == len(call) and set(call) <= set(self.live_of(size))
        left = self.limits.max_rows - sum(drawing.rows for drawing in call)
        assert left >= 0
        assert all(drawing in call or drawing.rows > left for drawing in self.live_of(size)), "a row was left empty"
        longest_s = min(self.stepped_s[drawing] for drawing in self.live_of(size))
        assert self.stepped_s[call[0]] == longest_s, "not whoever waited longest since its last step"
        oldest_s = min(self.stepped_s[drawing] for drawing in self.live)
        if self.now_s - oldest_s > self.limits.aging_ms / 1000:
            assert longest_s == oldest_s, "one that waited longer than the aging is passed"

    def _compute(self, turn: Turn) -> None:
        stay: list[Drawing] = []
        for drawing in turn.call:
            self.computed[drawing] += drawing.rows
            self.cost[drawing.size] += drawing.rows * drawing.size[0] * drawing.size[1]
            self.stepped_s[drawing] = self.now_s
            if self.fails(drawing):
                self._end(drawing, self.failed)
            elif self.computed[drawing] == drawing.evaluations:
                self._end(drawing, self.done)
            else:
                stay.append(drawing)
        self.batch.stepped(stay, self.now_s)

    def _end(self, drawing: Drawing, where: list[Drawing]) -> None:
        self.batch.end(drawing)
        self.live.remove(drawing)
        self.cancels.discard(drawing.key)
        where.append(drawing)


def random_drawing(chance: random.Random, now_s: float) -> Drawing:
    """Keys and tenants are few, so that they meet again."""
    return drawing_of(
        chance.choice(SIZES),
        rows=chance.choice((1, 2)),
        calls=chance.choice((1, 4, 20)),
        tenant=chance.choice("abc"),
        latency_class=chance.choice(("media", "batch")),
        deadline_s=now_s + chance.uniform(-0.05, 0.5) if chance.random() < 0.3 else None,
        key=bytes([chance.randrange(40)]),
    )


def _same_line(one: Drawing, other: Drawing) -> bool:
    return (one.size, one.tenant, one.latency_class) == (other.size, other.tenant, other.latency_class)
