"""A scheduler with an engine that computes nothing, and a plain model of who waits and runs that judges each answer."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import get_args

import pytest

from proteus.errors import DeadlineExceeded, InvalidRequest, QueueFull, Stalled
from proteus.language.policy import Policy
from proteus.language.scheduler import MAX_IDLE, Scheduler
from proteus.language.task import LEAST_CHUNK, Iteration, Modality, Task
from proteus.limits import LatencyClass, Schedule

CLASSES: tuple[LatencyClass, ...] = get_args(LatencyClass)
MODALITIES: tuple[Modality, ...] = get_args(Modality)
CONTEXT = 64
KEYS = count()


def limits_of(policy: str = "priority", **changes: int) -> Schedule:
    numbers = {
        "iteration_tokens": 16,
        "max_media_prefills": 1,
        "text_slots": 2,
        "max_media_slots": 2,
        "media_aging_ms": 2_000,
        "batch_aging_ms": 10_000,
    }
    return Schedule.model_validate({"policy": policy} | numbers | changes)


def task_of(
    latency_class: LatencyClass = "text",
    tenant: str = "ann",
    *,
    prompt: int = 8,
    visual: int = 0,
    answer: int = 4,
    deadline_s: float | None = None,
    key: bytes | None = None,
) -> Task:
    return Task(
        key=next(KEYS).to_bytes(8) if key is None else key,
        latency_class=latency_class,
        tenant=tenant,
        prompt_tokens=prompt,
        visual_tokens=visual,
        max_tokens=answer,
        deadline_s=deadline_s,
    )


@dataclass
class World:
    """`engine` is asked of each task whether its answer ends with this token; `stuck` never get on."""

    limits: Schedule
    slots: int = 4
    max_queue: int = 8
    now_s: float = 100.0
    waiting: list[Task] = field(default_factory=list)
    running: list[Task] = field(default_factory=list)
    cancels: set[bytes] = field(default_factory=set)  # keys, in flight or not
    stuck: set[Task] = field(default_factory=set)
    idle: dict[Task, int] = field(default_factory=dict)
    cached: Callable[[Task], int] = field(default=lambda task: 0)  # tokens that the prefix cache has
    is_last: Callable[[Task], bool] = field(default=lambda task: False)
    ended: list[Task] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(self.limits, slots=self.slots, max_queue=self.max_queue)
        self.policy = Policy(self.limits, slots=self.slots)

    @property
    def in_flight(self) -> list[Task]:
        return self.waiting + self.running

    def submit(self, *tasks: Task) -> None:
        """Refused exactly where it should be; checks what it then changes."""
        for task in tasks:
            error = self._expected_error(task)
            if error is not None:
                with pytest.raises(error):
                    self.scheduler.submit(task, self.now_s)
                continue
            self.scheduler.submit(task, self.now_s)
            self.policy.saw(task)
            self.waiting.append(task)
        self.check()

    def cancel(self, key: bytes) -> None:
        self.scheduler.cancel(key)
        self.cancels.add(key)
        self.check()

    def end(self, task: Task) -> None:
        self.scheduler.end(task)
        self.running.remove(task) if task in self.running else self.waiting.remove(task)
        self.cancels.discard(task.key)
        self.ended.append(task)

    def run(self, iterations: int = 1, step_s: float = 0.1) -> Iteration:
        for _ in range(iterations):
            self.now_s += step_s
            iteration = self.scheduler.next(self.now_s)
            self._judge(iteration)
            self._compute(iteration)
            self.check()
        return iteration

    def drain(self) -> None:
        """Until nothing is in flight; then everything is free."""
        bound = sum(task.kv_tokens + MAX_IDLE + 1 for task in self.in_flight)
        for _ in range(bound):
            if not self.scheduler.has_work():
                break
            self.run()
        assert self.in_flight == [] and not self.scheduler.has_work()
        assert self.scheduler.figures().kv_tokens == 0

    def check(self) -> None:
        self.scheduler.check()
        figures = self.scheduler.figures()
        assert self.scheduler.num_in_flight == len(self.in_flight) <= self.slots + self.max_queue
        prefilling = [task for task in self.running if task.prefilled < task.prompt_tokens]
        decoding = [task for task in self.running if task.prefilled == task.prompt_tokens]
        for told, tasks in (
            (figures.waiting, self.waiting),
            (figures.prefilling, prefilling),
            (figures.decoding, decoding),
        ):
            assert told == {name: sum(task.latency_class == name for task in tasks) for name in CLASSES}
        assert figures.kv_tokens == sum(task.kv_tokens for task in self.running) <= self.slots * CONTEXT
        assert all(task.prefilled + task.generated <= task.kv_tokens <= CONTEXT for task in self.running)
        assert figures.policy == self.policy.name

    def _expected_error(self, task: Task) -> type[Exception] | None:
        if any(other.key == task.key for other in self.in_flight):
            return InvalidRequest
        if len(self.in_flight) == self.slots + self.max_queue:
            return QueueFull
        if task.deadline_s is not None and task.deadline_s <= self.now_s:
            return DeadlineExceeded
        return None

    def _judge(self, iteration: Iteration) -> None:
        self._judge_ends(iteration)
        self._judge_places(iteration)
        self._judge_work(iteration)
        gone = iteration.refused or iteration.cancelled
        assert iteration.decodes or iteration.chunks or gone or not self.in_flight, "an empty iteration"

    def _judge_ends(self, iteration: Iteration) -> None:
        assert set(iteration.cancelled) == {task for task in self.in_flight if task.key in self.cancels}
        self.cancels -= {task.key for task in iteration.cancelled}
        rest = [task for task in self.in_flight if task not in iteration.cancelled]
        late = {t for t in self.waiting if t in rest and t.deadline_s is not None and t.deadline_s <= self.now_s}
        still = {task for task in self.running if task in rest and self.idle.get(task, 0) >= MAX_IDLE}
        kinds = {task: type(error) for task, error in iteration.refused}
        assert len(kinds) == len(iteration.refused)
        unplaceable = kinds.keys() - late - still
        assert kinds == dict.fromkeys(late, DeadlineExceeded) | dict.fromkeys(still | unplaceable, Stalled)
        self.waiting = [task for task in self.waiting if task in rest and task not in kinds]
        self.running = [task for task in self.running if task in rest and task not in kinds]
        if unplaceable:
            (task,) = unplaceable
            assert not self.running and not iteration.placed and self.policy.caps[task.modality] < 1

    def _judge_places(self, iteration: Iteration) -> None:
        free = sorted(set(range(self.slots)) - {task.slot for task in self.running})
        for task in iteration.placed:
            assert task.slot == free.pop(0)
            ahead = [other for other in self.waiting if self._same_lane(other, task)]
            assert ahead[0] is task, "out of order within tenant, class and modality"
            self.waiting.remove(task)
            self.running.append(task)
            assert self._num_running(task.modality) <= self.policy.caps[task.modality]
        if free:
            assert not any(self._num_running(t.modality) < self.policy.caps[t.modality] for t in self.waiting)

    def _judge_work(self, iteration: Iteration) -> None:
        decodes = [task for task in self.running if task.prefilled == task.prompt_tokens]
        prefilling = [task for task in self.running if task.prefilled < task.prompt_tokens]
        assert sorted(iteration.decodes, key=id) == sorted(decodes, key=id)
        chunks = iteration.chunks
        assert bool(chunks) == bool(prefilling)
        assert {chunk.task for chunk in chunks} <= set(prefilling)
        assert [c.task.order for c in chunks] == sorted({c.task.order for c in chunks})
        budget = self.limits.iteration_tokens - len(decodes)
        if self.policy.cuts_prompts:
            assert sum(chunk.tokens for chunk in chunks) <= budget or (
                len(chunks) == 1 and chunks[0].tokens < 2 * LEAST_CHUNK
            )
            assert sum(chunk.task.modality == "media" for chunk in chunks) <= self.limits.max_media_prefills
        else:
            assert all(chunk.tokens == chunk.task.prompt_tokens - chunk.task.prefilled for chunk in chunks)
            assert sum(chunk.tokens for chunk in chunks) <= budget or len(chunks) == 1
        for task in (*iteration.decodes, *(chunk.task for chunk in chunks)):
            self.idle[task] = self.idle.get(task, 0) + 1

    def _compute(self, iteration: Iteration) -> None:
        for task in iteration.placed:
            if tokens := self.cached(task):
                self.scheduler.prefilled(task, tokens)
                self.idle[task] = 0
        for task in iteration.decodes:
            if task not in self.stuck:
                self._choose(task)
        for chunk in iteration.chunks:
            task, due = chunk.task, chunk.due
            if task in self.stuck:
                continue
            assert due >= LEAST_CHUNK or task.prompt_tokens == 1
            self.scheduler.prefilled(task, due)
            self.idle[task] = 0
            if task.prefilled == task.prompt_tokens:
                self._choose(task)

    def _choose(self, task: Task) -> None:
        self.scheduler.generated(task)
        self.idle[task] = 0
        if task.generated == task.max_tokens or self.is_last(task):
            self.end(task)

    def _same_lane(self, one: Task, other: Task) -> bool:
        same_lane = (one.latency_class, one.modality) == (other.latency_class, other.modality)
        return same_lane and (one.tenant == other.tenant or not self.policy.is_fair)

    def _num_running(self, modality: Modality) -> int:
        return sum(task.modality == modality for task in self.running)


def random_task(chance: random.Random, now_s: float) -> Task:
    """Keys and tenants are few, so that they meet again."""
    prompt = chance.choice((1, 2, 3, 5, 17, chance.randrange(1, CONTEXT)))
    answer = min(CONTEXT - prompt, chance.choice((1, 2, CONTEXT, chance.randrange(1, CONTEXT))))
    return task_of(
        chance.choice(CLASSES),
        chance.choice("abc"),
        key=bytes([chance.randrange(24)]),
        prompt=prompt,
        visual=chance.choice((0, 0, prompt // 2, prompt)),
        answer=answer,
        deadline_s=now_s + chance.uniform(-0.5, 6) if chance.random() < 0.3 else None,
    )


def scheduler_of(policy: str = "priority", *, slots: int = 4, max_queue: int = 100, **changes: int) -> Scheduler:
    return Scheduler(limits_of(policy, **changes), slots=slots, max_queue=max_queue)


def submitted(scheduler: Scheduler, *tasks: Task, now_s: float = 0.0) -> tuple[Task, ...]:
    for task in tasks:
        scheduler.submit(task, now_s)
    return tasks


def computed(scheduler: Scheduler, now_s: float = 0.0) -> Iteration:
    """One iteration, done as it says."""
    iteration = scheduler.next(now_s)
    for task in iteration.decodes:
        scheduler.generated(task)
    for chunk in iteration.chunks:
        scheduler.prefilled(chunk.task, chunk.due)
        if chunk.task.prefilled == chunk.task.prompt_tokens:
            scheduler.generated(chunk.task)
    return iteration


def shares(iteration: Iteration) -> list[tuple[Task, int]]:
    return [(chunk.task, chunk.tokens) for chunk in iteration.chunks]


def picture(latency_class: str = "media", tenant: str = "ann", prompt: int = 40, answer: int = 4) -> Task:
    return task_of(latency_class, tenant, prompt=prompt, visual=prompt - 4, answer=answer)  # type: ignore[arg-type]
