"""Thousands of mixed requests with cancels, bad input and killed processes: what is lost, what grows, what agrees.

    make soak           # or: python -m perf.soak [--requests 10000] [--stub llm] [--json]

A server of the demo deployment, 16 clients. Every request ends in an answer, by a cancel, or in an error with a code of
ours. Memory at the end is compared with that after 500 requests, once the caches are full. The figures of the metrics
port, the limits and what the clients saw have to agree, and questions of the begin get the same answers at the end.
Writes perf/results/soak.json, docs/plots/soak.png and the tables of docs/soak.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from perf.arguments import at_least
from perf.records import Record, versions, write
from perf.soak_books import Books, faults
from perf.soak_fill import fill, settle
from perf.soak_kinds import PATIENCE_S, WISHES, Tally
from perf.soak_page import Point, write_page
from perf.soak_pictures import Stock
from perf.soak_processes import Sample, take_sample
from perf.soak_run import Course, Soak
from proteus.client import AsyncClient
from proteus.deployment import Deployment
from proteus.launcher import Server

DEPLOYMENT = Path("deployments/demo.toml")
STUBS = ("chat", "llm", "image_preprocess", "vision_encoder", "connector", "draw", "denoiser")
LEAST_REQUESTS = 250  # for a crowd that is refused, before the baseline
QUESTIONS = ("Describe the picture.", "How many shapes are there?", "What colour is the shape at the centre?")
NUM_ANSWERS, NUM_DRAWINGS = 12, 2
NUM_POINTS = 200  # of the plot
Fixed = tuple[tuple[int, ...] | bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a soak found."""

    tally: Tally
    baseline: Sample
    end: Sample
    points: list[Point]
    faults: list[str]
    filled_by: int  # requests that filled the caches before the baseline
    seconds: float

    @property
    def complaints(self) -> list[str]:
        """Whatever should not have been."""
        return [*self.tally.lost, *self.tally.unexpected, *self.faults]


async def fixed_answers(url: str, stock: Stock, scope: str) -> Fixed:
    """Greedy answers to questions that are always the same, and drawings of fixed seeds."""
    options: dict[str, Any] = {"cache_scope": scope, "timeout_s": PATIENCE_S}
    async with AsyncClient(url) as client:
        answers = [
            await client.ask(QUESTIONS[number % len(QUESTIONS)], picture, max_tokens=16, **options)
            for number, picture in enumerate(stock.repeated[:NUM_ANSWERS])
        ]
        drawings = [await client.draw(WISHES[seed], seed=seed, steps=4, **options) for seed in range(NUM_DRAWINGS)]
    return (*(answer.token_ids for answer in answers), *(drawing.pictures[0].data for drawing in drawings))


async def cold_and_warm(url: str, stock: Stock, moment: str) -> list[Fixed]:
    """A scope that nobody used has nothing in any cache; the second time it has."""
    return [await fixed_answers(url, stock, f"fixed, {moment}") for _ in range(2)]


async def soak(
    server: Server,
    deployment: Deployment,
    course: Course,
    *,
    stub: str,
    for_memory: bool = True,
    done: Callable[[], None] = lambda: None,
) -> Result:
    """The whole course on a server that has just started; memory can be compared only where `for_memory` is true."""
    stock, points = Stock(), list[Point]()

    def ended() -> None:
        done()
        num_ended = sum(running.tally.outcomes.values())
        if num_ended % max(1, course.requests // NUM_POINTS) == 0 and running.healthy:
            points.append(Point(requests=num_ended, sample=take_sample(server)))

    begun_s = time.monotonic()
    running = Soak(server, course, stock, stub=stub, done=ended)
    answers = await cold_and_warm(server.ports.grpc_url, stock, "begin")
    await running.run(0, course.baseline_at)
    filled_by = await fill(server, stock, deployment) if for_memory else 0
    await settle(server, stock if for_memory else None)
    before, baseline = Books.close(server, running.tally), take_sample(server)
    await running.run(course.baseline_at, course.requests)
    after = Books.close(server, running.tally)
    await settle(server, stock if for_memory else None)
    end = take_sample(server)
    answers += await cold_and_warm(server.ports.grpc_url, stock, "end")
    found = faults(before, after, deployment)
    if any(one != answers[0] for one in answers):
        found.append("questions asked again got other answers")
    seconds = time.monotonic() - begun_s
    return Result(
        tally=running.tally,
        baseline=baseline,
        end=end,
        points=points,
        faults=found,
        filled_by=filled_by,
        seconds=seconds,
    )


def records(result: Result, course: Course, stub: str, command: str) -> list[Record]:
    before, after = result.baseline.whole, result.end.whole
    when = (
        f"idle, at the end against after {course.baseline_at} requests and {result.filled_by} more that filled the "
        f"caches; a stub of {stub} was killed at {course.stub_dies_at}, decode workers at "
        f"{' and '.join(map(str, course.workers_die_at))}"
    )
    held = (
        f"RSS bytes {before.rss_bytes:,} -> {after.rss_bytes:,}, open files {before.files} -> {after.files}, "
        f"threads {before.threads} -> {after.threads}"
    )
    outcomes: Counter[str] = Counter()
    for (_, outcome), count in result.tally.outcomes.items():
        outcomes[outcome] += count
    ends = ", ".join(f"{outcome} {count:,}" for outcome, count in outcomes.most_common())
    wrong = f"unexpected {len(result.tally.unexpected)}; inconsistent {len(result.faults)}"
    shm = result.end.shm_bytes, result.baseline.shm_bytes
    rows = (
        ("memory", after.pss_bytes, before.pss_bytes, "bytes", f"PSS of all processes; {when}; {held}"),
        ("shm", *shm, "bytes", f"the server's regions; {when}"),
        ("lost", len(result.tally.lost), course.requests, "requests", f"{ends}; {wrong}; {result.seconds:.0f} s"),
    )
    return [
        Record(
            name=name,
            value=value,
            unit=unit,
            baseline=baseline,
            ratio=round(value / baseline, 4),
            runs=[value],
            command=command,
            versions=versions("tritonclient", "pillow"),
            note=note,
        )
        for name, value, baseline, unit, note in rows
    ]


def main() -> int:
    """The exit status: 1 where a request was lost, ended as it should not, or where the books do not agree."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=at_least(LEAST_REQUESTS), default=10_000)
    parser.add_argument("--stub", choices=STUBS, default="llm", help="that is killed")
    parser.add_argument("--json", action="store_true", help="print the records instead of lines")
    arguments = parser.parse_args()
    course, deployment = Course.of(arguments.requests), Deployment.load(DEPLOYMENT)
    with (
        Server(deployment, log=Path("var/soak.log"), watch=True) as server,
        Progress(console=Console(stderr=True)) as progress,
    ):
        bar = progress.add_task("soak", total=course.requests)
        result = asyncio.run(soak(server, deployment, course, stub=arguments.stub, done=lambda: progress.advance(bar)))
    found = records(result, course, arguments.stub, " ".join(["python -m perf.soak", *sys.argv[1:]]))
    write("soak", found)
    write_page(result.points, result.baseline, result.end, course, result.tally)
    if arguments.json:
        print(json.dumps([asdict(record) for record in found], indent=2))
    else:
        for record in found:
            print(f"{record.name:8} {record.value:,.0f} {record.unit} / {record.baseline:,.0f} = {record.ratio}")
            print(f"         {record.note}")
    for complaint in result.complaints:
        print(complaint, file=sys.stderr)
    return 1 if result.complaints else 0


if __name__ == "__main__":
    sys.exit(main())
