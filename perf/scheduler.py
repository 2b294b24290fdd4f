"""What the scheduler costs in one iteration, by the number of tasks that wait.

    python -m perf.scheduler [--iterations 20000] [--rounds 7]

All of it: asking for the iteration, telling what was computed, ending, submitting, cancelling. As many tasks come as
go, so as many wait all the time; tenants, classes and deadlines are mixed, one in ten of those that come is cancelled.
Microseconds of processor time; the lengths take turns, so that a busy machine slows all of them alike. `decodes` is
`next` alone, with 8 decodes and nothing else to do.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from itertools import count

from perf.records import Record, write
from proteus.language.scheduler import Scheduler
from proteus.language.task import Task
from proteus.limits import LatencyClass, Schedule

WAITING = (10, 100, 1_000, 10_000)
SLOTS = 8
CONTEXT_TOKENS = 1024
CLASSES: tuple[LatencyClass, ...] = ("text", "text", "media", "media", "batch")
LIMITS = Schedule(
    policy="auto",
    iteration_tokens=72,
    max_media_prefills=1,
    text_slots=3,
    max_media_slots=5,
    media_aging_ms=2_000,
    batch_aging_ms=10_000,
)


class Bench:
    def __init__(self, num_waiting: int) -> None:
        self._chance, self._keys, self._now_s = random.Random(7), count(), 0.0
        self._scheduler = Scheduler(LIMITS, slots=SLOTS, max_queue=num_waiting)
        self._num_in_flight = SLOTS + num_waiting
        self._fill()

    def us_per_iteration(self, iterations: int) -> float:
        scheduler = self._scheduler
        spent_ns = 0
        for _ in range(iterations):
            self._now_s += 0.01
            new = [self._task() for _ in range(2)]  # made outside of the time
            start_ns = time.thread_time_ns()
            iteration = scheduler.next(self._now_s)
            for task in iteration.decodes:
                self._choose(task)
            for chunk in iteration.chunks:
                scheduler.prefilled(chunk.task, chunk.due)
                if chunk.task.prefilled == chunk.task.prompt_tokens:
                    self._choose(chunk.task)
            while scheduler.num_in_flight < self._num_in_flight and new:
                scheduler.submit(task := new.pop(), self._now_s)
                if task.number % 10 == 0:
                    scheduler.cancel(task.key)
            spent_ns += time.thread_time_ns() - start_ns
            self._fill()
        return spent_ns / iterations / 1000

    def _choose(self, task: Task) -> None:
        self._scheduler.generated(task)
        if task.generated == task.max_tokens:
            self._scheduler.end(task)

    def _fill(self) -> None:
        while self._scheduler.num_in_flight < self._num_in_flight:
            self._scheduler.submit(self._task(), self._now_s)

    def _task(self) -> Task:
        chance = self._chance
        latency_class = chance.choice(CLASSES)
        prompt = chance.randrange(8, 200)
        return Task(
            key=next(self._keys).to_bytes(16),
            latency_class=latency_class,
            tenant=f"tenant {chance.randrange(100)}",
            prompt_tokens=prompt,
            visual_tokens=0 if latency_class == "text" else chance.randrange(prompt),
            max_tokens=chance.randrange(8, 64),
            deadline_s=self._now_s + 10_000 if chance.random() < 0.5 else None,
        )


def decodes_us(iterations: int) -> float:
    """`next` with 8 decodes and nothing else."""
    scheduler = Scheduler(LIMITS, slots=SLOTS, max_queue=1)
    for number in range(SLOTS):
        task = Task(
            key=bytes([number]),
            latency_class="text",
            tenant="",
            prompt_tokens=2,
            visual_tokens=0,
            max_tokens=CONTEXT_TOKENS + iterations,
        )
        scheduler.submit(task, 0.0)
    for chunk in scheduler.next(0.0).chunks:
        scheduler.prefilled(chunk.task, chunk.due)
    spent_ns = 0
    for _ in range(iterations):
        start_ns = time.thread_time_ns()
        decodes = scheduler.next(0.0).decodes
        spent_ns += time.thread_time_ns() - start_ns
        for task in decodes:
            scheduler.generated(task)
    return spent_ns / iterations / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=20_000, help="of each round")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()

    runs: dict[str, list[float]] = {name: [] for name in (*map(str, WAITING), "decodes")}
    benches = {number: Bench(number) for number in WAITING}
    for _ in range(arguments.rounds):
        for number, bench in benches.items():
            runs[str(number)].append(bench.us_per_iteration(arguments.iterations))
        runs["decodes"].append(decodes_us(arguments.iterations))
    few = runs[str(WAITING[0])]
    command = f"python -m perf.scheduler --iterations {arguments.iterations} --rounds {arguments.rounds}"
    records = [
        Record(
            name=f"scheduler/{name}",
            value=round(statistics.median(values), 2),
            unit="us",
            baseline=round(statistics.median(few), 2),
            ratio=round(statistics.median(value / base for value, base in zip(values, few, strict=True)), 3),
            runs=[round(value, 2) for value in values],
            command=command,
            note="`next` alone, 8 decodes" if name == "decodes" else "all calls of one iteration, 8 slots",
        )
        for name, values in runs.items()
    ]
    for record in records:
        print(f"{record.name:18} {record.value:7.2f} us   {record.ratio}")
    print(write("scheduler", records))


if __name__ == "__main__":
    main()
