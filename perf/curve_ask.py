"""Quality against cost of pictures that are read: how often answers are right, by size, tier and type of question.

    make curve-ask      # or: python -m perf.curve_ask [--questions 150] [--quick] [--json]

The same questions about the same unseen scenes in every row, through the door of a real server, nothing from a cache.
The cost is the CPU time of all the server's processes. Goes on where it was stopped, at the same commit. Writes
perf/results/ask_curve.json, the tables of docs/ask_curve.md and docs/plots/ask_curve.png.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from export.world.held_out import Item, held_out_items
from export.world.questions import TYPES
from perf.arguments import at_least
from perf.ask_curve_page import summary, write_pages
from perf.ask_pictures import files
from perf.ask_scores import MAX_PIXELS, QUARTERS, Caps, Cell, Detail, Row, View, Way, rows_of
from perf.ask_server import cpu_s, reading_deployment
from perf.draw_scores import Share
from perf.records import RESULTS, commit, versions
from proteus.client import Answer, AsyncClient
from proteus.deployment import Deployment
from proteus.launcher import Server
from proteus.manifest import Manifest

DEMO = Path("deployments/demo.toml")
SIDES_PX = (16, 24, 32, 48, 64, 96, 192, 512, 1536)
DETAILS: tuple[Detail, ...] = ("low", "auto", "high")
VIEWS: tuple[tuple[View, ...], ...] = (("whole",), ("around", "whole"), QUARTERS)
RUNS, QUICK_RUNS, QUICK_QUESTIONS = 5, 2, 4  # of a cell; each asks a part of its questions
CLIENTS = 8
MAX_TOKENS = 12  # no true answer is as long
KEPT = Path("var/curve-ask")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a part of a cell's questions came to."""

    right: list[bool]
    core_ms: float  # of a request
    visual_tokens: float
    file_bytes: float


def ways() -> list[Way]:
    """Sizes, tiers whose caps are felt, the demo's own caps where they are felt, and pictures of parts."""
    sizes = [Way(side_px=side_px) for side_px in SIDES_PX]
    sizes += [Way(side_px=1536, format="jpeg", detail=detail) for detail in ("auto", "low")]
    tiers = [
        Way(caps="tight", side_px=side_px, format="jpeg" if side_px == 1536 else "png", detail=detail)
        for side_px in (192, 512, 1536)
        for detail in DETAILS
    ]
    return [*sizes, *(Way(side_px=512, views=views) for views in VIEWS[1:]), *tiers]


def types_of(way: Way) -> tuple[str, ...]:
    """Parts of a picture are of use to who looks for something small."""
    return (*TYPES, "which") if way.views == ("whole",) else ("small",)


class Kept:
    """Runs that are measured: a file for each way and number of the run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def has(self, way: Way, number: int) -> bool:
        return self._path(way, number).exists()

    def add(self, way: Way, number: int, runs: dict[str, Run]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        partial = self._path(way, number).with_suffix(".partial")
        partial.write_text(json.dumps({type_: asdict(run) for type_, run in runs.items()}))
        partial.replace(self._path(way, number))

    def read(self, way: Way, number: int) -> dict[str, Run]:
        return {type_: Run(**fields) for type_, fields in json.loads(self._path(way, number).read_text()).items()}

    def _path(self, way: Way, number: int) -> Path:
        return self._folder / f"{way.name}-{number}.json"


class Measurement:
    """The questions, split into runs, and what is known of them."""

    def __init__(self, kept: Kept, questions: int, runs: int) -> None:
        self._kept, self._numbers = kept, range(runs)
        self._items = {type_: held_out_items(type_, questions) for type_ in (*TYPES, "which")}

    def missing(self, caps: Caps) -> list[tuple[int, Way]]:
        """Run by run, so that what changes on the machine meets all ways alike."""
        mine = [way for way in ways() if way.caps == caps]
        return [(number, way) for number in self._numbers for way in mine if not self._kept.has(way, number)]

    def measure(self, server: Server, missing: Sequence[tuple[int, Way]], step: Callable[[Way], None]) -> None:
        asyncio.run(self._measure(server, missing, step))

    def cells(self) -> Iterator[Cell]:
        for way in ways():
            runs = [self._kept.read(way, number) for number in self._numbers]
            for type_ in types_of(way):
                yield self._cell(way, type_, [run[type_] for run in runs])

    def _part(self, type_: str, number: int) -> list[Item]:
        return self._items[type_][number :: len(self._numbers)]

    def _cell(self, way: Way, type_: str, runs: Sequence[Run]) -> Cell:
        items = [item for number in self._numbers for item in self._part(type_, number)]
        right = [is_right for run in runs for is_right in run.right]
        return Cell(
            way=way,
            type=type_,
            right=tuple(right),
            seeds=tuple(item.scenes[0].seed for item in items),
            core_ms=tuple(run.core_ms for run in runs),
            visual_tokens=sum(run.visual_tokens * len(run.right) for run in runs) / len(right),
            file_bytes=sum(run.file_bytes * len(run.right) for run in runs) / len(right),
        )

    async def _measure(self, server: Server, missing: Sequence[tuple[int, Way]], step: Callable[[Way], None]) -> None:
        async with AsyncClient(server.ports.grpc_url) as client:
            for type_ in self._items:  # warms up
                await ask_all(client, server, ways()[0], self._part(type_, 0))
            for number, way in missing:
                parts = {type_: self._part(type_, number) for type_ in types_of(way)}
                runs = {type_: await ask_all(client, server, way, part) for type_, part in parts.items()}
                self._kept.add(way, number, runs)
                step(way)


async def ask_all(client: AsyncClient, server: Server, way: Way, items: Sequence[Item]) -> Run:
    """Each question once, CLIENTS at once."""
    pictures = [files(item, way) for item in items]
    answers: dict[int, Answer] = {}
    left = list(range(len(items)))[::-1]

    async def one() -> None:
        while left:
            index = left.pop()
            answers[index] = await ask(client, way, items[index], pictures[index])

    begin_s = cpu_s(server.pid)
    await asyncio.gather(*(one() for _ in range(CLIENTS)))
    core_s = cpu_s(server.pid) - begin_s
    return Run(
        right=[is_right(answers[index], item) for index, item in enumerate(items)],
        core_ms=core_s * 1000 / len(items),
        visual_tokens=sum(answer.usage.visual_tokens for answer in answers.values()) / len(items),
        file_bytes=sum(len(data) for one in pictures for data in one) / len(items),
    )


async def ask(client: AsyncClient, way: Way, item: Item, pictures: Sequence[bytes]) -> Answer:
    """In a cache scope that nobody has used."""
    answer = await client.ask(
        item.question.text,
        pictures,
        detail=way.detail,
        max_tokens=MAX_TOKENS,
        temperature=0.0,
        tenant="curve",
        cache_scope=secrets.token_hex(8),
    )
    if set(answer.pictures) != {"encoded"}:
        raise SystemExit(f"a picture was not encoded anew: {answer.pictures}")
    return answer


def is_right(answer: Answer, item: Item) -> bool:
    """As export.train.evaluate judges: exactly the answer, and then the end."""
    return answer.text == item.question.answer and answer.finish_reason == "stop"


def measure_all(measurement: Measurement) -> None:
    missing = {caps: measurement.missing(caps) for caps in MAX_PIXELS}
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("curve", total=sum(map(len, missing.values())))

        def step(way: Way) -> None:
            progress.update(task, advance=1, description=way.name)

        for caps, max_pixels in MAX_PIXELS.items():
            if not missing[caps]:
                continue
            with tempfile.TemporaryDirectory(prefix="curve-ask-") as folder:
                deployment = reading_deployment(DEMO, Path(folder), max_pixels)
                with Server(deployment, log=Path(f"var/curve-ask-{caps}.log")) as server:
                    measurement.measure(server, missing[caps], step)


def as_document(rows: Sequence[Row], revision: str, command: str) -> dict[str, Any]:
    return {
        "command": command,
        "checkpoint": revision,
        "max_pixels": MAX_PIXELS,
        "clients": CLIENTS,
        "versions": versions("pillow", "tritonclient"),
        "commit": commit(),
        "ways": [
            {
                "name": row.way.name,
                **asdict(row.way),
                "accuracy": _numbers(row.accuracy, 4),
                "cells": [
                    {
                        "type": cell.type,
                        "questions": len(cell.right),
                        "accuracy": _numbers(cell.accuracy, 4),
                        "core_ms": _numbers(cell.cost, 2),
                        "runs_core_ms": [round(run, 2) for run in cell.core_ms],
                        "visual_tokens": round(cell.visual_tokens, 2),
                        "file_bytes": round(cell.file_bytes),
                    }
                    for cell in row.cells
                ],
            }
            for row in rows
        ],
    }


def _numbers(share: Share, digits: int) -> list[float]:
    return [round(value, digits) for value in (share.value, share.low, share.high)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", type=at_least(RUNS), default=150, help="of each type")
    parser.add_argument("--quick", action="store_true", help="a few questions, to see that it works; writes no page")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")
    arguments = parser.parse_args()
    questions, runs = (QUICK_QUESTIONS, QUICK_RUNS) if arguments.quick else (arguments.questions, RUNS)
    revision = Manifest.load(Deployment.load(DEMO).repository_path).revision
    measurement = Measurement(Kept(KEPT / f"{commit()}-{revision[:12]}-{questions}"), questions, runs)
    measure_all(measurement)
    rows = rows_of(list(measurement.cells()))
    document = as_document(rows, revision, " ".join(["python -m perf.curve_ask", *sys.argv[1:]]))
    if not arguments.quick:
        (RESULTS / "ask_curve.json").write_text(json.dumps(document, indent=2) + "\n")
        write_pages(rows)
    if arguments.json:
        print(json.dumps(document, indent=2))
    else:
        Console().print(summary(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
