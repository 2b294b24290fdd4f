"""A contestant's side: jobs as JSON lines on stdin, what came of them as JSON lines on stdout.

Runs in environments that have nothing of ours, so it needs the standard library only.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol


@dataclass(frozen=True)
class Seconds:
    """Of the process's CPU, all threads together, and of the wall."""

    cpu: float
    wall: float

    @classmethod
    def now(cls) -> Seconds:
        return cls(time.process_time(), time.perf_counter())

    def since(self, start: Seconds) -> Seconds:
        return Seconds(self.cpu - start.cpu, self.wall - start.wall)


@dataclass(frozen=True)
class Job:
    """Prompts, the number of tokens that each wants, and how many may decode at once."""

    prompts: list[list[int]]
    wanted: list[int]
    at_once: int


@dataclass(frozen=True)
class Turn:
    """What came of one job."""

    ids: list[list[int]]  # for each prompt
    decode_tokens: int  # of the time in which every stream was decoding; 0: there was none
    decode_s: Seconds
    whole_s: Seconds  # prefills too


class Recorder:
    """Takes the tokens of all streams as they come, and the time while every one of them decodes.

    What comes beyond what a stream wants is dropped. `tokens` is the most that any stream of the present batch wants.
    """

    def __init__(self, wanted: Sequence[int]) -> None:
        self.wanted = wanted
        self.ids: list[list[int]] = [[] for _ in wanted]
        # Counts, not sums over streams: an engine that tells token by token is not to pay for each of the others.
        self._num_started = self._num_ended = self._num_tokens = self._num_before = 0
        self._start = Seconds.now()
        self._decode_start: Seconds | None = None
        self._decode = 0, Seconds(0.0, 0.0)
        self.begin_batch(0, len(wanted))

    def begin_batch(self, first: int, num_streams: int) -> None:
        """Streams are counted from `first` on, until all of these have ended; those before have."""
        self._first, self._stop = first, first + num_streams
        self.tokens = max(self.wanted[first : self._stop])

    def step(self, rows: Iterable[tuple[int, Sequence[int]]]) -> bool:
        """The new tokens of some streams, (stream, ids); whether the batch has all of its."""
        for row, new in rows:
            stream = self._first + row
            ids, wanted = self.ids[stream], self.wanted[stream]
            new = new[: wanted - len(ids)]
            if new:
                self._num_started += not ids
                ids += new
                self._num_tokens += len(new)
                self._num_ended += len(ids) == wanted
        if self._decode_start is None:
            if self._num_started == len(self.ids) and not self._num_ended:
                self._num_before, self._decode_start = self._num_tokens, Seconds.now()
        elif self._num_ended and not self._decode[0]:
            self._decode = self._num_tokens - self._num_before, Seconds.now().since(self._decode_start)
        return self._num_ended == self._stop

    def note_decode(self, tokens: int, seconds: Seconds) -> None:
        """For an engine that gives its tokens only at the end."""
        self._decode = tokens, seconds

    def turn(self) -> Turn:
        return Turn(self.ids, *self._decode, Seconds.now().since(self._start))


class Contestant(Protocol):
    joins: bool  # requests to those that decode; else it runs one batch after the other

    def run(self, prompts: list[list[int]], recorder: Recorder) -> None:
        """Greedy answers as long as the recorder wants, whatever token would end them."""


def serve(make: Callable[[], Contestant], packages: Sequence[str]) -> None:
    """Say what runs, answer jobs until stdin ends."""

    def made() -> Callable[[dict[str, Any]], dict[str, Any]]:
        contestant = make()
        return lambda job: asdict(done(contestant, Job(**job)))

    answer_jobs(made, packages)


def answer_jobs(make: Callable[[], Callable[[dict[str, Any]], dict[str, Any]]], packages: Sequence[str]) -> None:
    """The same for jobs of any kind, each answered by what `make` gives."""
    # Libraries print where they like: what they print to stdout goes to the log.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)

    def answer(document: dict[str, Any]) -> None:
        answers.write(json.dumps(document) + "\n")

    try:
        start = time.perf_counter()
        run = make()
        answer({"versions": _versions(packages), "start_s": round(time.perf_counter() - start, 2)})
        for line in sys.stdin:
            answer(run(json.loads(line)))
    except Exception as failure:
        answer({"error": f"{type(failure).__name__}: {failure}"})
        raise


def done(contestant: Contestant, job: Job) -> Turn:
    recorder = Recorder(job.wanted)
    size = len(job.prompts) if contestant.joins else job.at_once
    for first in range(0, len(job.prompts), size):
        batch = job.prompts[first : first + size]
        recorder.begin_batch(first, len(batch))
        contestant.run(batch, recorder)
    return recorder.turn()


def _versions(packages: Sequence[str]) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return found
