"""A contestant's side: jobs as JSON lines on stdin, what came of them as JSON lines on stdout.

Runs in environments that have nothing of ours, so it needs the standard library only.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
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
class Turn:
    """What came of one job."""

    ids: list[list[int]]  # for each prompt
    decode_tokens: int  # of the time in which every stream was decoding
    decode_s: Seconds
    whole_s: Seconds  # prefills too


class Recorder:
    """Takes the tokens of all streams as they come, and the time while every one of them decodes."""

    def __init__(self, num_streams: int, tokens: int) -> None:
        self.ids: list[list[int]] = [[] for _ in range(num_streams)]
        self.tokens = tokens
        self._start = Seconds.now()
        self._num_before = 0
        self._decode_start: Seconds | None = None
        self._decode: tuple[int, Seconds] | None = None

    def step(self, rows: Sequence[tuple[int, Sequence[int]]]) -> bool:
        """The new tokens of some streams, (stream, ids); whether all have all of theirs."""
        for stream, new in rows:
            self.ids[stream] += new
        counts = [len(ids) for ids in self.ids]
        if self._decode_start is None and min(counts) > 0:
            self._num_before, self._decode_start = sum(counts), Seconds.now()
        elif self._decode_start is not None and self._decode is None and max(counts) >= self.tokens:
            self._decode = sum(counts) - self._num_before, Seconds.now().since(self._decode_start)
        return min(counts) >= self.tokens

    def turn(self, decode: tuple[int, Seconds] | None = None) -> Turn:
        """`decode` tells tokens and time of an engine that gives its tokens only at the end."""
        whole = Seconds.now().since(self._start)
        decode = decode or self._decode
        if decode is None:
            raise RuntimeError("there was no time in which every stream was decoding")
        return Turn(self.ids, *decode, whole)


class Contestant(Protocol):
    def run(self, prompts: list[list[int]], recorder: Recorder) -> Turn:
        """Greedy answers of exactly as many tokens as the recorder wants, whatever token would end them."""


def serve(make: Callable[[], Contestant], packages: Sequence[str]) -> None:
    """Pin to one core as the parent is, say what runs, answer jobs until stdin ends."""
    # Libraries print where they like: what they print to stdout goes to the log.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)

    def answer(document: dict[str, Any]) -> None:
        answers.write(json.dumps(document) + "\n")

    try:
        start = time.perf_counter()
        contestant = make()
        answer({"versions": _versions(packages), "start_s": round(time.perf_counter() - start, 2)})
        for line in sys.stdin:
            job = json.loads(line)
            recorder = Recorder(len(job["prompts"]), job["tokens"])
            answer(asdict(contestant.run(job["prompts"], recorder)))
    except Exception as failure:
        answer({"error": f"{type(failure).__name__}: {failure}"})
        raise


def _versions(packages: Sequence[str]) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return found
