"""Decodes pictures in processes that may die: a picture that kills, hangs or starves its worker fails alone.

One worker more than can be at work is kept started, so that the request after a death waits for no start. This process
itself never loads a decoder.
"""

from __future__ import annotations

import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from time import monotonic

import numpy as np
import numpy.typing as npt

from proteus.deployment import Deployment
from proteus.errors import InvalidPicture, InvalidRequest, ProteusError, Unavailable
from proteus.families.llava import LlavaFamily, ResizeRule
from proteus.limits import DecodeLimits
from proteus.media.accept import check_bytes
from proteus.preprocess.wire import (
    MAX_ERROR_BYTES,
    READY,
    REPLY,
    REQUEST,
    Size,
    Verdict,
    left_s,
    receive,
    unpack_error,
)

CHANNELS = 3
SPARE = 1
START_S = 60.0
RETRY_S = 1.0
# One thread, and memory that is kept from picture to picture: to fault it in anew would cost as much as a small decode.
ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "MALLOC_ARENA_MAX"), "1"),
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
}

Pixels = npt.NDArray[np.float32]
Note = Callable[[Pixels, float], None]  # what was made, and the seconds it took


def command(deployment: Deployment) -> list[str]:
    """The command line of a worker, by this process's own Python."""
    return [interpreter(), "-P", "-m", "proteus.preprocess.worker", str(deployment.path)]


def interpreter() -> str:
    """The Python to start; a program that embeds Python (Triton's stub) may be named by `sys.executable` itself."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    if os.path.basename(sys.executable or "").startswith("python"):
        return sys.executable
    found = shutil.which(version) or shutil.which("python3")
    if found is None:
        raise Unavailable(f"no {version} to decode pictures with", fix="put it on the PATH of the server")
    return found


class WorkerFailed(Exception):
    """A worker that is of no more use, with the error for the request it had."""

    def __init__(self, error: ProteusError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True, slots=True)
class Worker:
    """One process and our end of its socket."""

    process: subprocess.Popen[bytes]
    channel: socket.socket

    @classmethod
    def start(cls, arguments: list[str]) -> Worker:
        ours, theirs = socket.socketpair()
        environment = {**os.environ, **ENVIRONMENT}
        with theirs:
            process = subprocess.Popen(
                arguments, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, cwd="/", env=environment
            )
        return cls(process, ours)

    def wait_until_ready(self) -> None:
        """Raises TimeoutError, EOFError or OSError."""
        word = bytearray(len(READY))
        receive(self.channel, memoryview(word), monotonic() + START_S)

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def end(self) -> int:
        """Kill it, if it still lives; returns how it ended."""
        self.channel.close()
        self.process.kill()
        return self.process.wait()

    def decode(self, data: bytes, target_px: Size | None, shape: tuple[int, ...], limits: DecodeLimits) -> Pixels:
        """Raises the refusal of the worker; WorkerFailed when it is to be replaced."""
        deadline_s = monotonic() + limits.timeout_ms / 1000
        try:
            return self._exchange(data, target_px or (0, 0), shape, deadline_s)
        except TimeoutError as error:
            raise WorkerFailed(_too_slow(limits)) from error
        except (OSError, EOFError, ValueError) as error:
            ended_by = -self.end()
            raise WorkerFailed(_too_slow(limits) if ended_by == signal.SIGALRM else _died(limits)) from error

    def _exchange(self, data: bytes, target_px: Size, shape: tuple[int, ...], deadline_s: float) -> Pixels:
        for part in (REQUEST.pack(*target_px, len(data)), data):
            self.channel.settimeout(left_s(deadline_s))
            self.channel.sendall(part)
        head = bytearray(REPLY.size)
        receive(self.channel, memoryview(head), deadline_s)
        verdict, num_bytes = REPLY.unpack(head)
        if verdict == Verdict.PIXELS:
            pixels = np.empty(shape, dtype=np.float32)
            if num_bytes != pixels.nbytes:
                raise ValueError("pixels of another size")
            receive(self.channel, pixels.data.cast("B"), deadline_s)
            return pixels
        if num_bytes > MAX_ERROR_BYTES:
            raise ValueError("an error that is too long")
        text = bytearray(num_bytes)
        receive(self.channel, memoryview(text), deadline_s)
        error = unpack_error(bytes(text))
        raise error if verdict == Verdict.REFUSED else WorkerFailed(error)


class DecodePool:
    """`[decode] workers` pictures at once; safe to use from several threads."""

    def __init__(self, deployment: Deployment) -> None:
        """Starts the workers and waits for all but the spare; raises Unavailable when one does not start."""
        self._limits, self._image = deployment.decode, deployment.image
        self._shape = _shape(LlavaFamily.from_checkpoint(deployment.checkpoint_path).resize)
        self._command = command(deployment)
        self._idle: queue.LifoQueue[Worker] = queue.LifoQueue()
        self._started: set[Worker] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._threads = ThreadPoolExecutor(self._limits.workers, thread_name_prefix="decode")
        self._keeper = ThreadPoolExecutor(1, thread_name_prefix="decode-keeper")
        workers = [self._start() for _ in range(self._limits.workers)]
        for worker in workers:
            try:
                worker.wait_until_ready()
            except (OSError, EOFError) as error:
                self.close()
                raise Unavailable("a process that decodes pictures did not start", fix="read the log above") from error
            self._idle.put(worker)
        for _ in range(SPARE):  # nobody waits for them: a server that starts anew is needed soon
            self._keeper.submit(self._start_another)

    def submit(self, data: bytes, target_px: Size | None = None, note: Note | None = None) -> Future[Pixels]:
        """Bytes of one picture -> (3, S, S), made of `target_px` (upright width and height) where that is given.

        `note` is told of it in another thread, before the future is done. The future raises InvalidPicture,
        MediaTooLarge, or Unavailable while no worker can be had.
        """
        return self._threads.submit(self._decode, data, target_px, note)

    def close(self) -> None:
        """End every worker; safe to call again."""
        self._closed.set()
        for worker in self._all():
            worker.process.kill()  # what a thread waits for ends with it
        self._threads.shutdown(cancel_futures=True)
        self._keeper.shutdown(cancel_futures=True)
        for worker in self._all():
            self._drop(worker)

    def worker_pids(self) -> set[int]:
        """Process ids of the workers, those included that have not started yet."""
        return {worker.process.pid for worker in self._all()}

    def idle_pids(self) -> set[int]:
        """Process ids of those that wait for a picture."""
        with self._idle.mutex:
            return {worker.process.pid for worker in self._idle.queue}

    def _decode(self, data: bytes, target_px: Size | None, note: Note | None) -> Pixels:
        check_bytes(len(data), self._image)
        if target_px is not None and min(target_px) < 1:
            raise InvalidRequest(f"target_px = {list(target_px)}", limit="1 and above, or 0 and 0 for the own size")
        worker = self._lend()
        begun_s = monotonic()
        try:
            pixels = worker.decode(data, target_px, self._shape, self._limits)
        except WorkerFailed as failed:
            self._replace(worker)
            raise (_closing() if self._closed.is_set() else failed.error) from failed
        except ProteusError:
            self._idle.put(worker)
            raise
        self._idle.put(worker)
        if note is not None:
            note(pixels, monotonic() - begun_s)
        return pixels

    def _lend(self) -> Worker:
        deadline_s = monotonic() + self._limits.timeout_ms / 1000
        while True:
            try:
                worker = self._idle.get(timeout=left_s(deadline_s))
            except (queue.Empty, TimeoutError) as error:
                raise Unavailable(
                    "the processes that decode pictures are being started anew", fix="try again in some seconds"
                ) from error
            if worker.is_alive():
                return worker
            self._replace(worker)

    def _replace(self, worker: Worker) -> None:
        self._drop(worker)
        if not self._closed.is_set():
            self._keeper.submit(self._start_another)

    def _start_another(self) -> None:
        while not self._closed.is_set():
            worker = self._start()
            try:
                worker.wait_until_ready()
            except (OSError, EOFError):
                self._drop(worker)
                self._closed.wait(RETRY_S)
            else:
                self._idle.put(worker)
                return

    def _start(self) -> Worker:
        worker = Worker.start(self._command)
        with self._lock:
            self._started.add(worker)
        return worker

    def _drop(self, worker: Worker) -> None:
        worker.end()
        with self._lock:
            self._started.discard(worker)

    def _all(self) -> list[Worker]:
        with self._lock:
            return list(self._started)


def _shape(rule: ResizeRule) -> tuple[int, ...]:
    return (CHANNELS, *(rule.crop_px or rule.size_px or ()))


def _closing() -> Unavailable:
    return Unavailable("the server stops decoding pictures", fix="try again once it has started anew")


def _too_slow(limits: DecodeLimits) -> InvalidPicture:
    return InvalidPicture(
        "the picture takes too long to decode",
        limit=f"[decode] timeout_ms = {limits.timeout_ms:,}",
        fix="send a smaller picture, or save it anew",
    )


def _died(limits: DecodeLimits) -> InvalidPicture:
    return InvalidPicture(
        "the process that decoded the picture died",
        limit=f"[decode] memory_bytes = {limits.memory_bytes:,}",
        fix="send a smaller picture, or save it anew",
    )
