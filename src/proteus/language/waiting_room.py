"""Who waits for a slot, and who of them is next. Pure: no operation grows with the number that wait, but for heaps.

A lane for each latency class and modality: tenants share a lane by cost, lanes go by the oldest in each. So what a cap
holds up stands in nobody else's way, not even in its own tenant's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from itertools import product
from typing import get_args

from proteus.admission.heap import Heap
from proteus.admission.queue import FairQueue
from proteus.language.task import Modality, Task
from proteus.limits import LatencyClass

CLASSES: tuple[LatencyClass, ...] = get_args(LatencyClass)
MODALITIES: tuple[Modality, ...] = get_args(Modality)


class _Lane:
    def __init__(self, latency_class: LatencyClass, modality: Modality) -> None:
        self.latency_class, self.modality = latency_class, modality
        self.by_arrival: OrderedDict[Task, None] = OrderedDict()  # unlike dict, finds its first in O(1)
        self.queue = FairQueue[Task]()

    @property
    def oldest(self) -> Task:
        return next(iter(self.by_arrival))

    def next(self, *, fair: bool) -> Task:
        """All of a lane need the same, so the queue has one first."""
        return next(self.queue.firsts())[1] if fair else self.oldest


class WaitingRoom:
    def __init__(self, *, fair: bool) -> None:
        self._fair = fair
        self._size = 0
        self._lanes = {key: _Lane(*key) for key in product(CLASSES, MODALITIES)}
        self._text = self._lanes["text", "text"]
        self._was_passed = False  # text, by an older one of another lane: the next turn is its own
        self._deadlines = Heap[Task]()

    def __len__(self) -> int:
        return self._size

    def __contains__(self, task: Task) -> bool:
        return task in self._lane_of(task).by_arrival

    def add(self, task: Task) -> None:
        lane = self._lane_of(task)
        lane.by_arrival[task] = None
        lane.queue.add(task)
        self._size += 1
        if task.deadline_s is not None:
            self._deadlines.add(task, order=task.deadline_s, number=task.number)

    def remove(self, task: Task) -> None:
        """Takes out one that got no slot: its tenant pays nothing."""
        self._lane_of(task).queue.remove(task)
        self._left(task)

    def first(self, open_to: Mapping[Modality, bool]) -> Task | None:
        """Who goes next among the modalities that are open; left in.

        The oldest lane, but text at least every other time: when more comes than can be served, all that is not text
        is older than its aging, and text would wait behind all of it.
        """
        if self._was_passed and self._text.by_arrival and open_to["text"]:
            return self._text.next(fair=self._fair)
        found: _Lane | None = None
        for lane in self._lanes.values():
            if lane.by_arrival and open_to[lane.modality] and (found is None or lane.oldest.order < found.oldest.order):
                found = lane
        return None if found is None else found.next(fair=self._fair)

    def has_text(self) -> bool:
        """Whether any of the class text waits that is text."""
        return bool(self._text.by_arrival)

    def take(self, task: Task) -> None:
        """Takes out one that `first` gave and charges its tenant."""
        lane = self._lane_of(task)
        lane.queue.admit(task) if self._fair else lane.queue.remove(task)
        self._was_passed = self._fair and lane is not self._text and self.has_text()
        self._left(task)

    def late(self, now_s: float) -> Task | None:
        """One whose deadline has passed; left in."""
        task = self._deadlines.first()
        return task if task is not None and task.deadline_s is not None and task.deadline_s <= now_s else None

    def num_waiting(self) -> dict[LatencyClass, int]:
        """By class."""
        numbers = dict.fromkeys(CLASSES, 0)
        for lane in self._lanes.values():
            numbers[lane.latency_class] += len(lane.by_arrival)
        return numbers

    def check(self) -> None:
        """Raises RuntimeError unless each waits in the one lane that is its own."""
        for lane in self._lanes.values():
            if len(lane.by_arrival) != len(lane.queue):
                raise RuntimeError(f"{len(lane.by_arrival)} wait in a lane, {len(lane.queue)} in its queue")
            if not all(self._lane_of(task) is lane and task.slot < 0 for task in lane.by_arrival):
                raise RuntimeError("a task waits in another's lane, or has a slot")
        if sum(self.num_waiting().values()) != self._size or len(self._deadlines) > self._size:
            raise RuntimeError(f"{self.num_waiting()} wait, {self._size} are counted")

    def _lane_of(self, task: Task) -> _Lane:
        return self._lanes[task.latency_class, task.modality]

    def _left(self, task: Task) -> None:
        del self._lane_of(task).by_arrival[task]
        self._size -= 1
        self._deadlines.discard(task)
