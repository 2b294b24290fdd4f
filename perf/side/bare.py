"""The limit of the encoder path: our preprocessing and the same graphs in a plain loop, one process for each core.

No server, no client, no queue, no process between decoding and encoding; every process has one thread.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from proteus.contract import IMAGE_FEATURES, PIXEL_VALUES, VISUAL_TOKENS
from proteus.deployment import Deployment
from proteus.preprocess.openers import keep_decoders_small
from proteus.preprocess.picture import Preprocess
from proteus.preprocess.pool import ENVIRONMENT

What = Literal["whole", "graphs"]  # bytes to visual tokens, or pixels to visual tokens
Floats = npt.NDArray[np.float32]


class Loop:
    """Batches of the size that the deployment gives the encoder."""

    def __init__(self, deployment: Deployment) -> None:
        keep_decoders_small()
        self._preprocess = Preprocess.from_deployment(deployment)
        self._batch = deployment.stages.vision_encoder.max_batch
        self._encoder, self._connector = (
            _session(deployment.repository_path / name / "1" / "model.onnx") for name in ("vision_encoder", "connector")
        )

    def run(self, what: What, pictures: Sequence[bytes]) -> None:
        pixels = np.stack([self._preprocess(pictures[0])] * self._batch)
        for first in range(0, len(pictures), self._batch):
            batch = pictures[first : first + self._batch]
            self.encode(np.stack([self._preprocess(picture) for picture in batch]) if what == "whole" else pixels)

    def encode(self, pixels: Floats) -> Floats:
        features = self._encoder.run([IMAGE_FEATURES.name], {PIXEL_VALUES.name: pixels})[0]
        rows: Floats = self._connector.run([VISUAL_TOKENS.name], {IMAGE_FEATURES.name: features})[0]
        return rows


def _session(graph: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    per_s: float  # pictures
    cpu_ms: float  # of one picture, all processes together


@dataclass(frozen=True, slots=True)
class Worker:
    process: BaseProcess
    pipe: Connection


class BareLoops:
    """All of them at work together."""

    def __init__(self, deployment: Path, pictures: Sequence[bytes], cores: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._workers = []
        for _ in range(cores):
            ours, theirs = context.Pipe()
            process = context.Process(target=work, args=(theirs, deployment), daemon=True)
            with as_a_worker():
                process.start()
            theirs.close()
            ours.send(list(pictures))
            self._workers.append(Worker(process, ours))
        for worker in self._workers:
            worker.pipe.recv()  # it has loaded all and run once

    def rate(self, what: What, seconds: float) -> Rate:
        """Of all together, each for so long at least."""
        for worker in self._workers:
            worker.pipe.send((what, seconds))
        told = [worker.pipe.recv() for worker in self._workers]
        cpu_s, pictures = (sum(column) for column in zip(*((cpu_s, done) for _, cpu_s, done in told), strict=True))
        return Rate(per_s=sum(done / wall_s for wall_s, _, done in told), cpu_ms=cpu_s / pictures * 1e3)

    def end(self) -> None:
        for worker in self._workers:
            worker.pipe.send(None)
            worker.process.join()


@contextmanager
def as_a_worker() -> Iterator[None]:
    """What starts meanwhile keeps its memory from picture to picture, as the server's own decoders do."""
    before = dict(os.environ)
    os.environ.update(ENVIRONMENT)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def work(pipe: Connection, deployment: Path) -> None:
    """One process: pictures first, then turns until it is told None."""
    loop, pictures = Loop(Deployment.load(deployment)), pipe.recv()
    loop.run("whole", pictures)
    pipe.send("ready")
    while (turn := pipe.recv()) is not None:
        what, seconds = turn
        start_s, start_cpu_s, done = time.perf_counter(), time.process_time(), 0
        while (passed_s := time.perf_counter() - start_s) < seconds:
            loop.run(what, pictures)
            done += len(pictures)
        pipe.send((passed_s, time.process_time() - start_cpu_s, done))
