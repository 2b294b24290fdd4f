"""Quality against cost: how often pictures show what was asked for, by steps, guidance and sampler.

    make curve-draw     # or: python -m perf.curve_draw [--checkpoint FOLDER] [--prompts 200]

Every point draws the same unseen prompts from the same noise, 8 at once; its cost is the CPU time of a picture, text
and decoding included, on one core. The rules of export.world.verify judge. Goes on where it was stopped. Writes
perf/results/draw_curve.json, docs/drawing_curve.md and docs/plots/draw_curve.png.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from export.train_draw.pictures import UNSEEN_SEED
from export.world.verify import verify
from export.world.wish import Wish, drawing, full_wish, prompt
from perf.arguments import at_least
from perf.draw_checkpoint import CHECKPOINT, choose
from perf.draw_curve_page import REFERENCE, write_pages
from perf.draw_scores import Point, Score, front
from perf.draw_studio import Order, Studio
from perf.records import RESULTS, commit, versions
from proteus.generation.task import Settings
from proteus.limits import SamplerName
from proteus.manifest import DrawManifest

STEPS = (1, 2, 4, 8, 16, 20, 32, 50)
GUIDANCES = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
SAMPLERS: tuple[SamplerName, ...] = ("euler", "ddim", "heun", "dpmpp_2m")
USUAL_SAMPLER, _, USUAL_GUIDANCE = REFERENCE
SIDE_PX, CLIENTS = 64, 8
KEPT = Path("var/curve-draw")


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How a point draws."""

    sampler: SamplerName
    steps: int
    guidance: float


def ways() -> list[Way]:
    """Every sampler with the usual guidance, and every guidance with the usual sampler."""
    pairs = [(sampler, USUAL_GUIDANCE) for sampler in SAMPLERS]
    pairs += [(USUAL_SAMPLER, guidance) for guidance in GUIDANCES if guidance != USUAL_GUIDANCE]
    return [Way(sampler=sampler, steps=steps, guidance=guidance) for sampler, guidance in pairs for steps in STEPS]


class Kept:
    """Points that are measured, each in a file of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def has(self, way: Way) -> bool:
        return self._path(way).exists()

    def add(self, way: Way, point: Point) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        partial = self._path(way).with_suffix(".partial")
        partial.write_text(json.dumps(asdict(point)))
        partial.replace(self._path(way))

    def read(self, way: Way) -> Point:
        fields = json.loads(self._path(way).read_text())
        return Point(**{**fields, "scores": tuple(Score(**score) for score in fields["scores"])})

    def _path(self, way: Way) -> Path:
        return self._folder / f"{way.sampler}-{way.steps}-{way.guidance:g}.json"


def measure(studio: Studio, way: Way, wishes: Sequence[Wish]) -> Point:
    orders = [
        Order(
            prompt=prompt(wish, random.Random(number)),
            settings=Settings(
                width_px=SIDE_PX,
                height_px=SIDE_PX,
                steps=way.steps,
                guidance=way.guidance,
                sampler=way.sampler,
                seed=number,
            ),
        )
        for number, wish in enumerate(wishes)
    ]
    rows, begin_s = studio.figures().counts.rows, time.process_time()
    pictures = studio.draw(orders)
    core_s = time.process_time() - begin_s
    return Point(
        sampler=way.sampler,
        steps=way.steps,
        guidance=way.guidance,
        evaluations=(studio.figures().counts.rows - rows) / len(orders),
        core_s=core_s / len(orders),
        scores=tuple(Score.of(verify(picture, wish)) for picture, wish in zip(pictures, wishes, strict=True)),
    )


def measure_all(studio: Studio, kept: Kept, wishes: Sequence[Wish]) -> None:
    missing = [way for way in ways() if not kept.has(way)]
    if missing:
        measure(studio, missing[0], wishes[: 2 * CLIENTS])  # warms up
    with Progress(console=Console(stderr=True)) as progress:
        # A bar in denoise steps: a point of 50 takes as long as many of 1.
        task = progress.add_task("curve", total=sum(way.steps for way in missing))
        for way in missing:
            progress.update(task, description=f"{way.sampler}, {way.steps} steps, guidance {way.guidance:g}")
            kept.add(way, measure(studio, way, wishes))
            progress.advance(task, way.steps)


def write_results(points: Sequence[Point], checkpoint: Path, revision: str, command: str) -> None:
    document = {
        "command": command,
        "checkpoint": str(checkpoint),
        "revision": revision,
        "size_px": [SIDE_PX, SIDE_PX],
        "versions": versions(),
        "commit": commit(),
        "front": [point.name for point in front(points)],
        "points": [point.as_document() for point in points],
    }
    (RESULTS / "draw_curve.json").write_text(json.dumps(document, indent=2) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, help="in diffusers' layout; else the demo's, or random weights")
    parser.add_argument("--prompts", type=at_least(2), default=200)
    arguments = parser.parse_args()
    checkpoint, deployment = choose(arguments.checkpoint)
    revision = DrawManifest.load(deployment.repository_path).revision
    kept = Kept(KEPT / f"{revision[:12]}-{arguments.prompts}")
    scenes = [drawing("train", UNSEEN_SEED + number) for number in range(arguments.prompts)]
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    studio = Studio(deployment, clients=CLIENTS)
    try:
        measure_all(studio, kept, [full_wish(scene) for scene in scenes])
    finally:
        studio.close()
    points = [kept.read(way) for way in ways()]
    if checkpoint != CHECKPOINT:
        print(f"{checkpoint} is not the demo's checkpoint, so nothing is written but {KEPT}")
        return 0
    write_results(points, checkpoint, revision, " ".join(["python -m perf.curve_draw", *sys.argv[1:]]))
    write_pages(points)
    return 0


if __name__ == "__main__":
    sys.exit(main())
