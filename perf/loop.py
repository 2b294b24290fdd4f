"""What the engine's loop costs around ONNX Runtime: microseconds from the end of one decode step to the next.

    python -m perf.loop [--rounds 9] [--tokens 256]

All that Python does for one iteration: choosing, detokenising, telling the clients, scheduling, filling the inputs.
`loop/<streams>` for so many that decode, against the step itself; `loop/waiting/<number>` with 8 that decode and so
many that wait, against 10 that wait. CPU time of the engine's thread, because others use the machine too; wall time is
in the notes. The numbers of streams take turns; medians over the steps, then over the rounds. All on one core.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from time import perf_counter_ns, thread_time_ns
from typing import Any

import numpy as np

from perf.arguments import at_least
from perf.peers.ours import endless
from perf.records import Record, write
from proteus.deployment import Deployment
from proteus.language.engine import OnnxEngine
from proteus.language.generation import Emit, Event, Failure, GenerationRequest, Scheduling
from proteus.language.sampling import Sampling
from proteus.language.tokenizer import load_tokenizer
from proteus.limits import LatencyClass

DEPLOYMENT = Path("deployments/demo.toml")
STREAMS = (1, 4, 8, 16)
WAITING = (10, 100, 1_000, 10_000)
SLOTS, SLOTS_BESIDE_WAITING = 16, 8
PROMPT_TOKENS = 16
PATIENCE_S = 60.0
CLASSES: tuple[LatencyClass, ...] = ("text", "media", "batch")


class Watch:
    """Stands where the decoder has its session, and notes when runs begin and end while told to."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.is_on = False
        self.runs: list[
            tuple[int, int, int, int]
        ] = []  # nanoseconds: CPU and wall of the begin, wall and CPU of the end

    def io_binding(self) -> Any:
        return self._session.io_binding()

    def run_with_iobinding(self, binding: Any, *options: Any) -> None:
        begin_cpu, begin_wall = thread_time_ns(), perf_counter_ns()
        self._session.run_with_iobinding(binding, *options)
        end_wall = perf_counter_ns()
        if self.is_on:
            self.runs.append((begin_cpu, begin_wall, end_wall, thread_time_ns()))


class Nothing:
    def run_with_iobinding(self, binding: None) -> None:
        pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Medians over the steps of one round, in microseconds."""

    step: float  # of CPU time
    between: float  # the same
    between_wall: float

    @classmethod
    def of(cls, runs: Sequence[tuple[int, int, int, int]]) -> Times:
        return cls(
            step=statistics.median(run[3] - run[0] for run in runs) / 1000,
            between=statistics.median(after[0] - before[3] for before, after in pairwise(runs)) / 1000,
            between_wall=statistics.median(after[1] - before[2] for before, after in pairwise(runs)) / 1000,
        )


def watching() -> Times:
    """What the watch itself adds."""
    watch = Watch(Nothing())
    watch.is_on = True
    for _ in range(1000):
        watch.run_with_iobinding(None)
    return Times.of(watch.runs)


class Round:
    """So many streams that decode beside so many that wait; watched while all of them do."""

    def __init__(self, watch: Watch, streams: int) -> None:
        self._watch, self._streams = watch, streams
        self._num_begun = self._num_ended = 0
        self.failure: Failure | None = None
        self.all_decode, self.go_on, self.all_ended = threading.Event(), threading.Event(), threading.Event()
        self.forget_waiting: Callable[[], None] = lambda: None

    def stream(self) -> Emit:
        has_begun = False

        def take(event: Event | Failure) -> None:
            nonlocal has_begun
            if isinstance(event, Failure):
                self.failure = event
                self.all_decode.set()
                self.all_ended.set()
            elif not has_begun:
                has_begun = True
                self._begin()
            elif event.finish is not None:
                self._end()

        return take

    def _begin(self) -> None:
        self._num_begun += 1
        if self._num_begun == self._streams:
            self.all_decode.set()
            _wait(self.go_on)  # holds the engine until others wait
            self._watch.is_on = True

    def _end(self) -> None:
        self._watch.is_on = False
        if self._num_ended == 0:
            self.forget_waiting()
        self._num_ended += 1
        if self._num_ended == self._streams:
            self.all_ended.set()


class Bench:
    """An engine that is watched; it never ends an answer before its length."""

    def __init__(self, deployment: Deployment, export: Path, *, slots: int, max_queue: int) -> None:
        schedule = deployment.llm.schedule.model_copy(update={"policy": "priority"})  # text may have every slot
        prefix_cache = deployment.llm.prefix_cache.model_copy(update={"max_bytes": 0})
        limits = {"slots": slots, "max_queue": max_queue, "schedule": schedule, "prefix_cache": prefix_cache}
        llm = deployment.llm.model_copy(update={**limits, "threads": 1})
        self._engine = OnnxEngine(export, load_tokenizer(deployment.checkpoint_path), llm, revision="bench")
        decoder: Any = self._engine._decoder
        self._watch = decoder._session = Watch(decoder._session)
        self._numbers = count()
        self._random = np.random.default_rng(7)

    def times(self, streams: int, tokens: int, waiting: int = 0) -> Times:
        round_ = Round(self._watch, streams)
        for _ in range(streams):
            self._submit(round_.stream(), tokens, Scheduling())
        _wait(round_.all_decode)
        keys = [self._submit(lambda _: None, 1, _mixed(number)) for number in range(waiting)]
        round_.forget_waiting = partial(self._cancel, keys)
        round_.go_on.set()
        _wait(round_.all_ended)
        if round_.failure is not None:
            raise round_.failure.error
        runs, self._watch.runs = self._watch.runs, []
        return Times.of(runs)

    def close(self) -> None:
        self._engine.close()

    def _cancel(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self._engine.cancel(key)

    def _submit(self, emit: Emit, tokens: int, scheduling: Scheduling) -> bytes:
        request = GenerationRequest(
            request_key=next(self._numbers).to_bytes(8, "big"),
            input_ids=self._random.integers(8, 500, PROMPT_TOKENS).astype(np.int32),
            visual_tokens=None,
            visual_spans=(),
            sampling=Sampling(max_tokens=tokens),
            scheduling=scheduling,
        )
        self._engine.submit(request, emit)
        return request.request_key


def _mixed(number: int) -> Scheduling:
    deadline_s = 1e9 if number % 2 else None  # far away; half have one
    return Scheduling(tenant=f"tenant {number % 100}", latency_class=CLASSES[number % 3], deadline_s=deadline_s)


def _wait(event: threading.Event) -> None:
    if not event.wait(PATIENCE_S):
        raise TimeoutError("the engine did not come to it")


def measure(deployment: Deployment, export: Path, *, rounds: int, tokens: int) -> dict[str, list[Times]]:
    """By the name of the record; all take a turn in each round, the first of which warms up."""
    alone = Bench(deployment, export, slots=SLOTS, max_queue=1)
    beside = Bench(deployment, export, slots=SLOTS_BESIDE_WAITING, max_queue=max(WAITING))
    turns: Mapping[str, Callable[[], Times]] = {
        **{f"loop/{streams}": partial(alone.times, streams, tokens) for streams in STREAMS},
        **{
            f"loop/waiting/{waiting}": partial(beside.times, SLOTS_BESIDE_WAITING, tokens, waiting)
            for waiting in WAITING
        },
    }
    found: dict[str, list[Times]] = {name: [] for name in turns}
    for round_ in range(rounds + 1):
        for name, turn in turns.items():
            times = turn()
            if round_ > 0:
                found[name].append(times)
    alone.close()
    beside.close()
    return found


def recorded(found: Mapping[str, Sequence[Times]], watch: Times, command: str) -> list[Record]:
    few = [times.between - watch.between for times in found[f"loop/waiting/{WAITING[0]}"]]
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    records = []
    for name, rounds in found.items():
        runs = [times.between - watch.between for times in rounds]
        wall = statistics.median(times.between_wall - watch.between_wall for times in rounds)
        baselines = few if "waiting" in name else [times.step for times in rounds]
        record = Record(
            name=name,
            value=round(statistics.median(runs), 1),
            unit="us",
            baseline=round(statistics.median(baselines), 1),
            ratio=round(statistics.median(run / base for run, base in zip(runs, baselines, strict=True)), 3),
            runs=[round(run, 1) for run in runs],
            command=command,
            note=f"CPU time between two decode steps; wall {wall:.1f} us; {load}",
        )
        records.append(record)
    return records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=at_least(1), default=9)
    parser.add_argument("--tokens", type=at_least(2), default=256, help="of each answer")
    arguments = parser.parse_args()

    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    deployment = Deployment.load(DEPLOYMENT)
    with tempfile.TemporaryDirectory() as scratch:
        export = endless(deployment.repository_path / "llm" / "1", Path(scratch))
        found = measure(deployment, export, rounds=arguments.rounds, tokens=arguments.tokens)
    command = f"python -m perf.loop --rounds {arguments.rounds} --tokens {arguments.tokens}"
    records = recorded(found, watching(), command)
    for record in records:
        print(f"{record.name:20} {record.value:7.1f} us of {record.baseline:7.1f}   {record.ratio:.3f}   {record.note}")
    print(write("loop", records))


if __name__ == "__main__":
    main()
