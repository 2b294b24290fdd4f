"""Runs the sender in a process of its own, so that nothing here is late on its account, and shows how far it is."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from perf.replay.results import Result
from perf.replay.send import Counts, Sender
from perf.replay.trace import Trace
from proteus.client import ClientError

TELL_EVERY_S = 0.2
Note = tuple[Literal["pictures"], int] | tuple[Literal["requests"], Counts]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """For the process that sends."""

    trace: Path
    results: Path
    url: str  # host:port of the server's gRPC
    speed: float  # arrivals are so many times as dense as in the trace
    timeout_s: float  # of one answer


def send(job: Job, notes: Connection) -> None:
    """The whole life of that process. Ctrl-C is its parent's to hear, which ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with job.results.open("w") as file:

        def take(result: Result) -> None:
            file.write(result.model_dump_json(exclude_defaults=True) + "\n")
            file.flush()  # what has ended stays, whatever becomes of the run

        sender = Sender(Trace.read(job.trace), take, speed=job.speed, timeout_s=job.timeout_s)
        sender.make_pictures(lambda made: notes.send(("pictures", made)))
        gc.collect()
        gc.freeze()  # else a collection looks at every line and library again, in the middle of the traffic
        try:
            with _telling(sender, notes):
                asyncio.run(sender.run(job.url))
        except ClientError as error:  # no server at all; what happens to a request is a result
            raise SystemExit(f"replay: {error}") from None


@contextmanager
def _telling(sender: Sender, notes: Connection) -> Iterator[None]:
    """In a thread: a parent that is slow to read holds up no request."""
    ended = threading.Event()

    def tell() -> None:
        while not ended.wait(TELL_EVERY_S):
            notes.send(("requests", sender.counts))

    thread = threading.Thread(target=tell, name="replay-telling")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        notes.send(("requests", sender.counts))


def drive(job: Job) -> None:
    """Sends all of it; raises SystemExit where the process that sends fails. Ctrl-C ends that process too."""
    trace = Trace.read(job.trace)
    job.results.parent.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=send, args=(job, writer), name="replay")
    process.start()
    writer.close()
    try:
        with _bar() as bar:
            _show(bar, trace, reader)
    except KeyboardInterrupt:
        process.terminate()
        raise
    finally:
        process.join()
    if process.exitcode:
        raise SystemExit("the process that sends ended with an error; what had ended by then is in the results")


def _show(bar: Progress, trace: Trace, notes: Connection) -> None:
    wanted = len({picture for request in trace.requests for picture in getattr(request, "pictures", ())})
    pictures = bar.add_task("pictures", total=wanted, told="made before the clock begins")
    requests = bar.add_task("requests", total=len(trace.requests), told="")
    while True:
        try:
            kind, counted = notes.recv()
        except EOFError:
            return
        if kind == "pictures":
            bar.update(pictures, completed=counted)
        else:
            bar.update(requests, completed=counted.done, told=_told(counted))


def _told(counts: Counts) -> str:
    return f"{counts.sent} sent, {counts.sent - counts.done} open, {counts.done} done, {counts.errors} errors"


def _bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f}/{task.total:.0f}"))
    return Progress(*columns, TextColumn("{task.fields[told]}"), TimeElapsedColumn(), console=Console(stderr=True))
