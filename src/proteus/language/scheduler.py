"""Who of the sequences decodes, prefills, waits or is ended, iteration by iteration. docs/decisions/0013 says why so.

Pure logic: no thread, no clock, no arrays. One caller at a time. The engine asks `next`, does what it says, and tells
`prefilled`, `generated` and `end`. No iteration is empty while something is in flight: work is given, or one is ended.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import Counter, OrderedDict
from collections.abc import Iterable

from proteus.errors import DeadlineExceeded, InvalidRequest, ProteusError, QueueFull, Stalled
from proteus.language.policy import Policy
from proteus.language.task import Chunk, Figures, Iteration, Modality, Move, Task, share_of
from proteus.language.waiting_room import CLASSES, MODALITIES, WaitingRoom
from proteus.limits import LatencyClass, Schedule

MOVED_FROM_TOKENS = 16  # that may still come: to copy a slot costs some steps with a row too many
MAX_IDLE = 64  # iterations with work and without progress after which a task is ended
MAX_REMEMBERED_CANCELS = 1024  # of keys that are not in flight (yet)

Refusals = list[tuple[Task, ProteusError]]


class Scheduler:
    """`kv_tokens` of what runs is reserved on placing and fits its slot; nothing that runs gives way to anything."""

    def __init__(self, limits: Schedule, *, slots: int, max_queue: int) -> None:
        self._limits, self._slots, self._max_queue = limits, slots, max_queue
        self._policy = Policy(limits, slots=slots)
        self._waiting = WaitingRoom(fair=self._policy.is_fair)
        self._free = list(range(slots))  # a heap
        self._in_flight: dict[bytes, Task] = {}
        self._running: dict[Task, None] = {}
        self._num_running: Counter[Modality] = Counter()
        self._prefilling: list[Task] = []  # first to go first
        self._decoding: tuple[Task, ...] | None = ()  # None: to be made anew
        self._to_cancel: set[bytes] = set()  # keys in flight
        self._remembered: OrderedDict[bytes, None] = OrderedDict()  # keys to cancel on arrival, oldest first
        self._may_place = False  # something changed since nobody more could be placed
        self._num_submitted = 0
        self._kv_tokens = 0
        self._last = _only(())

    @property
    def num_in_flight(self) -> int:
        return len(self._in_flight)

    def has_work(self) -> bool:
        """Whether `next` would find anybody."""
        return bool(self._in_flight)

    def figures(self) -> Figures:
        """What is where now, by class."""
        return Figures(
            waiting=self._waiting.num_waiting(),
            prefilling=_by_class(self._prefilling),
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

    def next(self, now_s: float) -> Iteration:
        """Ends who is to end, places who may have a slot, and gives out the work of one iteration."""
        cancelled = self._take_cancelled() if self._to_cancel else ()
        refused = self._take_refused(now_s)
        placed: tuple[Task, ...] = ()
        moved: tuple[Move, ...] = ()
        if self._may_place:
            placed, moved = self._place(now_s), self._move_down()
        if not self._running and self._waiting:
            refused.append(self._take_unplaceable())
        decodes = self._decodes()
        for task in decodes:
            task.idle += 1
        if not (cancelled or refused or placed or moved or self._prefilling):
            return self._decodes_only(decodes)
        return Iteration(
            refused=tuple(refused),
            cancelled=cancelled,
            placed=placed,
            moved=moved,
            decodes=decodes,
            chunks=self._chunks(self._limits.iteration_tokens - len(decodes)),
        )

    def owes_text(self) -> bool:
        """Whether text that somebody waits for has no slot yet, and the next iteration would give it one."""
        return (
            self._policy.cuts_prompts
            and bool(self._free)
            and self._num_running["text"] < self._policy.caps["text"]
            and self._waiting.has_text()
        )

    def prefilled(self, task: Task, tokens: int) -> None:
        """`tokens` more of the prompt are in the slot: computed, or taken from the prefix cache."""
        if task not in self._running or not 0 <= tokens <= task.prompt_tokens - task.prefilled:
            raise RuntimeError(f"{tokens} tokens more than {task.prefilled} of {task.prompt_tokens}")
        if tokens:
            task.prefilled += tokens
            task.idle = 0
            if task.prefilled == task.prompt_tokens:
                self._prefilling.remove(task)
                self._decoding = None

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
        prefilling = [task for task in self._running if task.prefilled < task.prompt_tokens]
        if self._prefilling != sorted(prefilling, key=_order):
            raise RuntimeError("who prefills is out of order, or not who has some of the prompt left")
        if not self._to_cancel <= self._in_flight.keys():
            raise RuntimeError("a cancel is pending for a task that is gone")

    def _take_cancelled(self) -> tuple[Task, ...]:
        tasks = tuple(sorted((self._in_flight[key] for key in self._to_cancel), key=lambda task: task.number))
        for task in tasks:
            self._remove(task)
        return tasks

    def _take_refused(self, now_s: float) -> Refusals:
        """Those that wait and are too late, and the watchdog's: those that run and stand still."""
        refused: Refusals = []
        while (task := self._waiting.late(now_s)) is not None:
            refused.append((task, _too_late(now_s - task.arrived_s)))
            self._remove(task)
        for task in [task for task in self._running if task.idle >= MAX_IDLE]:
            refused.append((task, _stalled(task)))
            self._remove(task)
        return refused

    def _take_unplaceable(self) -> tuple[Task, ProteusError]:
        """The watchdog's too: with every slot free none may have one, and waiting would change nothing."""
        task = self._waiting.first(dict.fromkeys(MODALITIES, True))
        if task is None:
            raise RuntimeError("somebody waits, and nobody is first")
        self._remove(task)
        name, cap = self._policy.name, self._policy.caps[task.modality]
        return task, Stalled(
            f"a request of {task.kv_tokens:,} tokens can never get a slot, although all are free",
            limit=f"[llm.schedule] policy {name}: {cap} of {self._slots} slots for {task.modality}",
        )

    def _place(self, now_s: float) -> tuple[Task, ...]:
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
            insort(self._prefilling, task, key=_order)
            placed.append(task)
        return tuple(placed)

    def _move_down(self) -> tuple[Move, ...]:
        """From the highest slots to free ones below: a step computes a row for each slot up to the highest taken."""
        moves: list[Move] = []
        while self._free and self._running:
            task = max(self._running, key=_slot)
            if task.slot < self._free[0] or task.max_tokens - task.generated < MOVED_FROM_TOKENS:
                break
            moves.append(Move(task=task, source=task.slot))
            task.slot = heapq.heapreplace(self._free, task.slot)
            self._decoding = None
        return tuple(moves)

    def _decodes(self) -> tuple[Task, ...]:
        if self._decoding is None:
            self._decoding = tuple(task for task in self._running if task.prefilled == task.prompt_tokens)
        return self._decoding

    def _decodes_only(self, decodes: tuple[Task, ...]) -> Iteration:
        if self._last.decodes is not decodes:
            self._last = _only(decodes)
        return self._last

    def _chunks(self, budget: int) -> tuple[Chunk, ...]:
        """Shares of what the decodes leave, in order; the first in order always gets one."""
        chunks: list[Chunk] = []
        num_media = 0
        for task in self._prefilling:
            if task.visual_tokens and num_media == self._policy.max_media_prefills:
                continue
            left = task.prompt_tokens - task.prefilled
            tokens = share_of(left, budget, first=not chunks, whole=not self._policy.cuts_prompts)
            if not tokens:
                break
            task.idle += 1
            budget -= tokens
            num_media += bool(task.visual_tokens)
            chunks.append(Chunk(task=task, tokens=tokens))
        return tuple(chunks)

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
        if task.prefilled < task.prompt_tokens:
            self._prefilling.remove(task)
        else:
            self._decoding = None
        self._may_place = True


def _only(decodes: tuple[Task, ...]) -> Iteration:
    return Iteration(refused=(), cancelled=(), placed=(), moved=(), decodes=decodes, chunks=())


def _slot(task: Task) -> int:
    return task.slot


def _order(task: Task) -> tuple[float, int]:
    return task.order


def _by_class(tasks: Iterable[Task]) -> dict[LatencyClass, int]:
    numbers = Counter(task.latency_class for task in tasks)
    return {name: numbers[name] for name in CLASSES}


def _too_late(waited_s: float) -> DeadlineExceeded:
    return DeadlineExceeded(
        f"no slot after {waited_s * 1e3:,.0f} ms of waiting",
        limit="the request's deadline",
        fix="try again later, or allow more time",
    )


def _stalled(task: Task) -> Stalled:
    return Stalled(
        f"no progress in {task.idle} iterations, with {task.prefilled:,} of {task.prompt_tokens:,} prompt tokens in "
        f"and {task.generated:,} of {task.max_tokens:,} chosen",
        fix="try again; if it happens again, report the request",
    )
