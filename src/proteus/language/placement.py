"""Who waits for a slot, who has one, and who is ended: what every engine shares, whatever runs its model.

Pure logic: no thread, no clock, no arrays. One caller at a time. docs/decisions/0013 says why who goes first.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Iterable

from proteus.errors import DeadlineExceeded, InvalidRequest, ProteusError, QueueFull, Stalled
from proteus.language.policy import Policy
from proteus.language.task import Figures, Modality, Task
from proteus.language.waiting_room import CLASSES, MODALITIES, WaitingRoom
from proteus.limits import LatencyClass, Schedule

MAX_REMEMBERED_CANCELS = 1024  # of keys that are not in flight (yet)

Refusals = list[tuple[Task, ProteusError]]


class Placement:
    """`kv_tokens` of what runs is reserved on placing and fits its slot; nothing that runs gives way to anything."""

    def __init__(self, limits: Schedule, *, slots: int, max_queue: int) -> None:
        self._limits, self._slots, self._max_queue = limits, slots, max_queue
        self._policy = Policy(limits, slots=slots)
        self._waiting = WaitingRoom(fair=self._policy.is_fair)
        self._free = list(range(slots))  # a heap
        self._in_flight: dict[bytes, Task] = {}
        self._running: dict[Task, None] = {}
        self._num_running: Counter[Modality] = Counter()
        self._to_cancel: set[bytes] = set()  # keys in flight
        self._remembered: OrderedDict[bytes, None] = OrderedDict()  # keys to cancel on arrival, oldest first
        self._may_place = False  # something changed since nobody more could be placed
        self._num_submitted = 0
        self._kv_tokens = 0

    @property
    def num_in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def has_work(self) -> bool:
        """Whether anybody waits or runs."""
        return bool(self._in_flight)

    def figures(self) -> Figures:
        """What is where now, by class."""
        return Figures(
            waiting=self._waiting.num_waiting(),
            prefilling=_by_class(task for task in self._running if task.prefilled < task.prompt_tokens),
            decoding=_by_class(task for task in self._running if task.prefilled == task.prompt_tokens),
            kv_tokens=self._kv_tokens,
            policy=self._policy.name,
        )

    def submit(self, task: Task, now_s: float) -> None:
        """Queue it. Raises InvalidRequest (key in use), QueueFull or DeadlineExceeded, and changes nothing then."""
        if task.key in self._in_flight:
            raise InvalidRequest("request_key is in use", fix="give each request a random key of its own")
        if len(self._in_flight) >= (limit := self._slots + self._max_queue):
            raise QueueFull(
                f"{len(self._in_flight)} requests are decoding or waiting", limit=f"[llm] slots + max_queue = {limit}"
            )
        if task.deadline_s is not None and task.deadline_s <= now_s:
            raise _too_late(0.0)
        task.number, task.arrived_s = self._num_submitted, now_s
        task.order = self._policy.order(task, now_s)
        self._num_submitted += 1
        self._policy.saw(task)
        self._in_flight[task.key] = task
        self._waiting.add(task)
        self._may_place = True
        if task.key in self._remembered:
            del self._remembered[task.key]
            self._to_cancel.add(task.key)

    def cancel(self, key: bytes) -> None:
        """The next iteration ends it. A key that is not in flight is remembered: a cancel can overtake its request."""
        if key in self._in_flight:
            self._to_cancel.add(key)
            return
        self._remembered[key] = None
        if len(self._remembered) > MAX_REMEMBERED_CANCELS:
            self._remembered.popitem(last=False)

    def prefilled(self, task: Task, tokens: int) -> None:
        """`tokens` more of the prompt are in the slot: computed, or taken from the prefix cache."""
        if task not in self._running or not 0 <= tokens <= task.prompt_tokens - task.prefilled:
            raise RuntimeError(f"{tokens} tokens more than {task.prefilled} of {task.prompt_tokens}")
        if tokens:
            task.prefilled += tokens
            task.idle = 0

    def generated(self, task: Task) -> None:
        """One more token of the answer is chosen."""
        if task not in self._running or task.prefilled < task.prompt_tokens or task.generated >= task.max_tokens:
            raise RuntimeError(f"a token more than {task.generated} of {task.max_tokens}, or before the prompt is in")
        task.generated += 1
        task.idle = 0

    def end(self, task: Task) -> None:
        """It is finished or failed, and out of everything; its slot is free."""
        if self._in_flight.get(task.key) is not task:
            raise RuntimeError("the task is not in flight")
        self._remove(task)

    def end_all(self) -> list[Task]:
        """Ends everything, in order of arrival."""
        tasks = list(self._in_flight.values())
        for task in tasks:
            self._remove(task)
        return tasks

    def check(self) -> None:
        """Raises RuntimeError when the books do not add up."""
        self._waiting.check()
        if len(self._waiting) + len(self._running) != len(self._in_flight):
            raise RuntimeError(f"{len(self._waiting)} wait, {len(self._running)} run, {len(self._in_flight)} in flight")
        if any(self._in_flight.get(task.key) is not task for task in self._running):
            raise RuntimeError("a task runs that is not in flight")
        if sorted([*self._free, *(task.slot for task in self._running)]) != list(range(self._slots)):
            raise RuntimeError(f"slots are lost or taken twice: {len(self._free)} free, {len(self._running)} taken")
        if self._kv_tokens != sum(task.kv_tokens for task in self._running):
            raise RuntimeError(f"{self._kv_tokens} tokens are reserved, which is not the sum of what runs")
        if +self._num_running != Counter(task.modality for task in self._running):
            raise RuntimeError(f"{dict(self._num_running)} run, by the count of each modality")
        if not self._to_cancel <= self._in_flight.keys():
            raise RuntimeError("a cancel is pending for a task that is gone")

    def take_cancelled(self) -> tuple[Task, ...]:
        """Ends those whose cancel came, in order of arrival."""
        tasks = tuple(sorted((self._in_flight[key] for key in self._to_cancel), key=lambda task: task.number))
        for task in tasks:
            self._remove(task)
        return tasks

    def take_refused(self, now_s: float) -> Refusals:
        """Ends those that wait and are too late."""
        refused: Refusals = []
        while (task := self._waiting.late(now_s)) is not None:
            refused.append((task, _too_late(now_s - task.arrived_s)))
            self._remove(task)
        return refused

    def place(self, now_s: float) -> tuple[Task, ...]:
        """Gives slots to those who may have one now."""
        if not self._may_place:
            return ()
        self._may_place = False
        placed: list[Task] = []
        caps = self._policy.caps
        while self._free:
            open_to = {modality: self._num_running[modality] < caps[modality] for modality in MODALITIES}
            if (task := self._waiting.first(open_to)) is None:
                break
            self._waiting.take(task)
            task.slot = heapq.heappop(self._free)
            task.order = self._policy.order(task, now_s)
            self._running[task] = None
            self._num_running[task.modality] += 1
            self._kv_tokens += task.kv_tokens
            placed.append(task)
        return tuple(placed)

    def take_unplaceable(self) -> Refusals:
        """The watchdog's: with every slot free somebody may have none, and waiting would change nothing."""
        if self._running or not self._waiting:
            return []
        task = self._waiting.first(dict.fromkeys(MODALITIES, True))
        if task is None:
            raise RuntimeError("somebody waits, and nobody is first")
        self._remove(task)
        name, cap = self._policy.name, self._policy.caps[task.modality]
        error = Stalled(
            f"a request of {task.kv_tokens:,} tokens can never get a slot, although all are free",
            limit=f"[llm.schedule] policy {name}: {cap} of {self._slots} slots for {task.modality}",
        )
        return [(task, error)]

    def _remove(self, task: Task) -> None:
        del self._in_flight[task.key]
        self._to_cancel.discard(task.key)
        if task not in self._running:
            self._waiting.remove(task)
            return
        del self._running[task]
        self._num_running[task.modality] -= 1
        self._kv_tokens -= task.kv_tokens
        heapq.heappush(self._free, task.slot)
        self._may_place = True


def _by_class(tasks: Iterable[Task]) -> dict[LatencyClass, int]:
    numbers = Counter(task.latency_class for task in tasks)
    return {name: numbers[name] for name in CLASSES}


def _too_late(waited_s: float) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"no slot after {waited_s * 1e3:,.0f} ms of waiting",
        limit="the request's deadline",
        fix="try again later, or allow more time",
    )
