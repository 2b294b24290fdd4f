"""Two servers behind the gateway, one of which is restarted and then killed while questions go on: what is lost."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from perf.gateway_client import GATEWAY, WARM_UP, Job
from perf.gateway_servers import Started, figures, free_ports, gateway, serve, tritonserver_of
from perf.gateway_turns import asked, quantile
from perf.records import Record

PER_SECOND, TOKENS = 10.0, 64  # of streams, and as many whole answers; long enough to be cut in the middle
RESTART_S, KILL_S = 40.0, 25.0
FIRST = 4 * round(PER_SECOND) + WARM_UP  # answers of each client before anything happens: all is well
DRAIN_S = 15.0
UP_S = 60.0
Say = Callable[[str], None]


@dataclass(slots=True, kw_only=True)
class Course:
    """What happened, and what became of the questions; moments in s after the first question."""

    name: str
    events: list[tuple[float, str]] = field(default_factory=list)
    answers: dict[bool, Sequence[dict[str, Any]]] = field(default_factory=dict)  # by whether they were streamed


def measure(folder: Path, first: Started, command: str, say: Say) -> tuple[list[Record], list[Course]]:
    """Beside a server that stays."""
    with ExitStack() as stack:
        second = serve(folder, "second", drain_s=DRAIN_S, ports=free_ports())
        stack.callback(second.end)
        front = gateway(folder, first, second)
        stack.callback(front.end)
        courses, found = [], []
        for name, seconds, happens in (("restart", RESTART_S, _restart), ("kill", KILL_S, _kill)):
            say(f"{name} of one of two servers")
            _until_both_are_up(front)
            retries = sum(figures(front, "server_retries_total").values())
            course = _during(name, seconds, front, partial(happens, second))
            courses.append(course)
            found += _records(course, sum(figures(front, "server_retries_total").values()) - retries, command)
    return found, courses


def _during(name: str, seconds: float, front: Started, happens: Callable[[Say], None]) -> Course:
    course, marks = Course(name=name), list[tuple[float, str]]()
    jobs = {stream: _job(front, stream, seconds) for stream in (True, False)}
    before = _ended(front)
    with ThreadPoolExecutor(len(jobs)) as clients:
        asking = {stream: clients.submit(asked, job) for stream, job in jobs.items()}
        _until_all_is_well(front, before)
        happens(lambda what: marks.append((time.monotonic(), what)))
        course.answers = {stream: answers.result() for stream, answers in asking.items()}
    begun_s = min(one["sent_s"] for answers in course.answers.values() for one in answers)
    course.events = [(at_s - begun_s, what) for at_s, what in marks]
    for answers in course.answers.values():
        for one in answers:
            one["sent_s"] -= begun_s
    return course


def _job(front: Started, stream: bool, seconds: float) -> Job:
    url = f"http://{front.addresses['gateway']}"
    seed = 90_000 + stream
    return Job(way=GATEWAY, url=url, stream=stream, seed=seed, seconds=seconds, per_second=PER_SECOND, tokens=TOKENS)


def _restart(server: Started, tell: Say) -> None:
    tell("SIGTERM")
    server.end()
    tell("ended")
    server.begin()
    tell("ready")


def _kill(server: Started, tell: Say) -> None:
    tell("SIGKILL")
    os.kill(tritonserver_of(server.pid), signal.SIGKILL)


def _until_all_is_well(front: Started, before: float) -> None:
    end_s = time.monotonic() + UP_S
    while _ended(front) < before + 2 * FIRST and time.monotonic() < end_s:
        time.sleep(0.1)


def _ended(front: Started) -> float:
    """Requests, however they ended."""
    return sum(figures(front, "requests_total").values())


def _until_both_are_up(front: Started) -> None:
    end_s = time.monotonic() + UP_S
    while not all(figures(front, "server_up").values()):
        if time.monotonic() > end_s:
            raise TimeoutError("one of two servers did not come up")
        time.sleep(0.1)


def _records(course: Course, retries: float, command: str) -> list[Record]:
    found = []
    for stream, answers in course.answers.items():
        lost = Counter(one["error"] for one in answers if one["error"])
        told = "; ".join(f"{count} {why}" for why, count in lost.most_common()) or "none"
        whole_ms = [one["whole_ms"] for one in answers if not one["error"]]
        found.append(
            Record(
                name=f"{course.name}/{'streamed' if stream else 'whole'}",
                value=lost.total(),
                unit="lost",
                baseline=len(answers),
                command=command,
                note=f"{told}; answers took up to {max(whole_ms):,.0f} ms, p99 {quantile(whole_ms, 0.99):,.0f} ms",
            )
        )
    events = ", ".join(f"{what} at {at_s:.1f} s" for at_s, what in course.events)
    note = f"another server was asked; {events}"
    return [*found, Record(name=f"{course.name}/retries", value=retries, unit="times", command=command, note=note)]
