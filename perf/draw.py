"""Pictures per second of our engine, of a bare loop over its graphs, of diffusers' pipeline, and of a whole server.

    make perf-draw      # or: python -m perf.draw [--checkpoint FOLDER] [--sizes 64x64 …] [--rounds 5] [--json]

8 clients, 20 Euler steps, guidance 3, one thread on one core; text, denoising and decoding are in all of them.
`diffusers/<size>` and `bare_loop/<size>` by CPU time, because others use the machine too; `server/<size>` by the wall.
`mixed_steps`: pictures of 4, 20 and 50 steps together; the share of computed rows that belong to none of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from export.train_draw.pictures import UNSEEN_SEED
from export.world.wish import drawing, full_wish, prompt
from perf.arguments import at_least
from perf.draw_checkpoint import CHECKPOINT, choose
from perf.draw_studio import BareLoop, Diffusers, Order, Pixels, Studio, Way
from perf.records import Record, versions, write
from proteus.client import AsyncClient
from proteus.deployment import Deployment
from proteus.generation.task import Settings
from proteus.launcher import Server
from proteus.manifest import DrawManifest

SIZES = ("64x64", "96x64", "96x96")
CLIENTS, STEPS, GUIDANCE = 8, 20, 3.0
MIXED_STEPS = (4, 20, 50)
UNIT = "images/s of CPU time"


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What one way did once."""

    images: int
    cpu_s: float
    wall_s: float

    @property
    def per_cpu_s(self) -> float:
        return self.images / self.cpu_s

    @property
    def per_s(self) -> float:
        return self.images / self.wall_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Where and how much is measured."""

    checkpoint: Path
    deployment: Deployment
    manifest: DrawManifest
    rounds: int
    pictures: int  # of a turn
    command: str

    def record(self, name: str, ours: Sequence[float], theirs: Sequence[float], unit: str, note: str) -> Record:
        weights = "trained weights" if self.checkpoint == CHECKPOINT else f"weights of {self.checkpoint}"
        return Record(
            name=name,
            value=round(statistics.median(ours), 3),
            unit=unit,
            baseline=round(statistics.median(theirs), 3),
            ratio=round(statistics.median(our / their for our, their in zip(ours, theirs, strict=True)), 3),
            runs=[round(value, 3) for value in ours],
            command=self.command,
            versions=versions("torch", "diffusers", "transformers"),
            note=f"{note}; {weights}",
        )


def orders(size: str, steps: Sequence[int]) -> list[Order]:
    """A prompt and a seed of its own for each."""
    width_px, height_px = map(int, size.split("x"))
    scenes = [drawing("train", UNSEEN_SEED + number) for number in range(len(steps))]
    return [
        Order(
            prompt=prompt(full_wish(scene), random.Random(number)),
            settings=Settings(
                width_px=width_px,
                height_px=height_px,
                steps=own_steps,
                guidance=GUIDANCE,
                sampler="euler",
                seed=number,
            ),
        )
        for number, (scene, own_steps) in enumerate(zip(scenes, steps, strict=True))
    ]


def take_turn(way: Way, wanted: Sequence[Order]) -> tuple[Turn, list[Pixels]]:
    begin_cpu_s, begin_s = time.process_time(), time.perf_counter()
    pictures = way.draw(wanted)
    turn = Turn(images=len(pictures), cpu_s=time.process_time() - begin_cpu_s, wall_s=time.perf_counter() - begin_s)
    return turn, pictures


def compare(run: Run, ways: Mapping[str, Way], size: str, progress: Progress) -> list[Record]:
    """Ours against the others, in turns."""
    wanted = orders(size, [STEPS] * run.pictures)
    turns: dict[str, list[Turn]] = {name: [] for name in ways}
    drawn: dict[str, list[Pixels]] = {}
    for way in ways.values():
        way.draw(wanted[:CLIENTS])  # warms up
    names = list(ways)
    for number in progress.track(range(run.rounds), description=size):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            turn, drawn[name] = take_turn(ways[name], wanted)
            turns[name].append(turn)
    return [
        run.record(
            f"{name}/{size}",
            [turn.per_cpu_s for turn in turns["ours"]],
            [turn.per_cpu_s for turn in turns[name]],
            UNIT,
            f"{CLIENTS} clients; by the wall {wall_note(turns['ours'], turns[name])}; "
            f"pictures differ by {furthest(drawn['ours'], drawn[name])} of 255 at most",
        )
        for name in ways
        if name != "ours"
    ]


def wall_note(ours: Sequence[Turn], theirs: Sequence[Turn]) -> str:
    rates = [statistics.median(turn.per_s for turn in turns) for turns in (ours, theirs)]
    ratio = statistics.median(our.per_s / their.per_s for our, their in zip(ours, theirs, strict=True))
    return f"{rates[0]:.2f} / {rates[1]:.2f} images/s, ratio {ratio:.2f}"


def furthest(ones: Sequence[Pixels], others: Sequence[Pixels]) -> int:
    """The largest difference of any two 8-bit values."""
    return max(int(np.abs(one.astype(np.int16) - other).max()) for one, other in zip(ones, others, strict=True))


def mixed(run: Run, studio: Studio) -> Record:
    """Clients that want unequal numbers of steps; newcomers join wherever the others are."""
    steps = [MIXED_STEPS[number % len(MIXED_STEPS)] for number in range(3 * run.pictures)]
    before = studio.figures().counts
    turn, _ = take_turn(studio, orders(SIZES[0], random.Random(0).sample(steps, len(steps))))
    after = studio.figures().counts
    rows, padded = after.rows - before.rows, after.padded_rows - before.padded_rows
    room = after.row_room - before.row_room
    return Record(
        name="mixed_steps",
        value=round(100 * padded / (rows + padded), 2),
        unit="% of rows",
        baseline=round(100 * waste_of_lockstep(steps), 2),
        command=run.command,
        note=f"rows computed for no picture, {padded} of {rows + padded}; {100 * rows / room:.0f} % of the room of all "
        f"calls was used; {rows / turn.cpu_s:.0f} rows/s of CPU time; baseline: the same in batches that end together",
    )


def waste_of_lockstep(steps: Sequence[int]) -> float:
    """The share of rows after the end of their picture, where a whole batch runs as long as its longest."""
    return 1 - statistics.mean(steps) / max(steps)


@contextmanager
def on_one_core() -> Iterator[None]:
    """The thread that calls, and those that it starts from now on."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def through_server(run: Run, sizes: Sequence[str], diffusers: Diffusers, progress: Progress) -> list[Record]:
    """Clients of a whole server, in turns with the pipeline, which has the machine for itself then."""
    found = []
    with Server(run.deployment, log=Path("var/perf-draw.log")) as server:
        for size in sizes:
            wanted = orders(size, [STEPS] * run.pictures)
            ours: list[Turn] = []
            theirs: list[Turn] = []
            asyncio.run(ask(server.ports.grpc_url, size, wanted))  # warms up
            for _ in progress.track(range(run.rounds), description=f"server, {size}"):
                begin_cpu_s, begin_s = cpu_s(server), time.perf_counter()
                asyncio.run(ask(server.ports.grpc_url, size, wanted))
                wall_s = time.perf_counter() - begin_s
                ours.append(Turn(images=len(wanted), cpu_s=cpu_s(server) - begin_cpu_s, wall_s=wall_s))
                theirs.append(take_turn(diffusers, wanted[:CLIENTS])[0])
            ours_s, theirs_s = ([1 / statistics.median(turn.per_cpu_s for turn in turns)] for turns in (ours, theirs))
            found.append(
                run.record(
                    f"server/{size}",
                    [turn.per_s for turn in ours],
                    [turn.per_s for turn in theirs],
                    "images/s",
                    f"{CLIENTS} clients, PNG, {len(os.sched_getaffinity(0))} cores; baseline: diffusers, 1 thread; "
                    f"CPU time of a picture {ours_s[0]:.3f} / {theirs_s[0]:.3f} s",
                )
            )
    return found


async def ask(url: str, size: str, wanted: Sequence[Order]) -> None:
    left = list(wanted)

    async def client(connection: AsyncClient) -> None:
        while left:
            order = left.pop()
            await connection.draw(
                order.prompt, size=size, steps=STEPS, guidance=GUIDANCE, sampler="euler", seed=order.settings.seed
            )

    async with AsyncClient(url) as connection:
        await asyncio.gather(*(client(connection) for _ in range(CLIENTS)))


def cpu_s(server: Server) -> float:
    """Of the server and all its stubs, so far."""
    pids = [server.pid, *(pid for pids in server.stub_pids().values() for pid in pids)]
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(one[11]) + int(one[12]) for one in fields) / os.sysconf("SC_CLK_TCK")


def measure(run: Run, sizes: Sequence[str]) -> list[Record]:
    diffusers = Diffusers(run.checkpoint, run.manifest)
    with Progress(console=Console(stderr=True)) as progress:
        with on_one_core(), closing(Studio(run.deployment, clients=CLIENTS)) as studio:
            ways = {"ours": studio, "bare_loop": BareLoop(run.deployment, batch=CLIENTS), "diffusers": diffusers}
            found = [record for size in sizes for record in compare(run, ways, size, progress)]
            found.append(mixed(run, studio))
        return found + through_server(run, sizes, diffusers, progress)


def main() -> int:
    """Measures, writes perf/results/draw.json and prints; the exit status for the shell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, help="in diffusers' layout; else the demo's, or random weights")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--rounds", type=at_least(1), default=5)
    parser.add_argument("--pictures", type=at_least(CLIENTS), default=24, help="of each turn")
    parser.add_argument("--json", action="store_true", help="print the records instead of a table")
    arguments = parser.parse_args()
    checkpoint, deployment = choose(arguments.checkpoint)
    run = Run(
        checkpoint=checkpoint,
        deployment=deployment,
        manifest=DrawManifest.load(deployment.repository_path),
        rounds=arguments.rounds,
        pictures=arguments.pictures,
        command=" ".join(["python -m perf.draw", *sys.argv[1:]]),
    )
    found = measure(run, arguments.sizes)
    write("draw", found)
    if arguments.json:
        print(json.dumps([asdict(record) for record in found], indent=2))
        return 0
    table = Table("record", "ours", "theirs", "unit", "ratio", "note")
    for record in found:
        table.add_row(
            record.name, f"{record.value:g}", f"{record.baseline:g}", record.unit, f"{record.ratio or 0:g}", record.note
        )
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
