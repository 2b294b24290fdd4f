"""How well a drawing checkpoint draws, told by the rule verifier: `python -m export.train_draw.evaluate FOLDER`.

Three sets of prompts: unseen ones of compositions like those trained on, compositions held out by rule, and vague ones
that leave things open. The control scores every picture against another's prompt.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from rich.table import Table

from export.train_draw.pictures import SIZES, UNSEEN_SEED, scenes
from export.train_draw.vae import decode, encode
from export.world.draw import draw
from export.world.scene import Split
from export.world.verify import verify
from export.world.wish import Wish, full_wish, prompt, vague_wish

STEPS, GUIDANCE = 20, 2.0
BATCH = 50
REPORT = "quality.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Shares of pictures (background, count, exact) and of things (colour, shape) that are as wished."""

    pictures: int
    things: int
    background: float
    count: float
    colour: float
    shape: float
    exact: float


def score(pictures: Sequence[NDArray[np.uint8]], wishes: Sequence[Wish]) -> Score:
    """The verdicts on `pictures`, added up."""
    verdicts = [verify(picture, wish) for picture, wish in zip(pictures, wishes, strict=True)]
    colours = [right for verdict in verdicts for right in verdict.colours]
    shapes = [right for verdict in verdicts for right in verdict.shapes]
    return Score(
        pictures=len(verdicts),
        things=len(shapes),
        background=_share([verdict.background for verdict in verdicts]),
        count=_share([verdict.count for verdict in verdicts]),
        colour=_share(colours),
        shape=_share(shapes),
        exact=_share([verdict.exact for verdict in verdicts]),
    )


def reconstruction(vae: AutoencoderKL, split: Split, size: tuple[int, int], count: int) -> Score:
    """What the autoencoder alone keeps of real pictures: no drawn picture can be better."""
    seen = scenes(split, size, _unseen(split, count))
    real = np.stack([np.asarray(draw(scene)) for scene in seen])
    return score(list(decode(vae, encode(vae, real))), [full_wish(scene) for scene in seen])


def drawn(
    pipeline: StableDiffusionPipeline, wishes: Sequence[Wish], size: tuple[int, int], *, seed: int
) -> list[NDArray[np.uint8]]:
    """A picture for each wish: STEPS DDIM steps, guidance GUIDANCE, the n-th from noise of `seed` + n."""
    width_px, height_px = size
    pictures: list[NDArray[np.uint8]] = []
    words = random.Random(seed)
    prompts = [prompt(wish, words) for wish in wishes]
    for at in track(range(0, len(wishes), BATCH), description=f"drawing {width_px} x {height_px}"):
        part = prompts[at : at + BATCH]
        generators = [torch.Generator().manual_seed(seed + at + number) for number in range(len(part))]
        images = pipeline(
            part,
            num_inference_steps=STEPS,
            guidance_scale=GUIDANCE,
            width=width_px,
            height=height_px,
            generator=generators,
            output_type="np",
        ).images
        pictures += list((images * 255).round().astype(np.uint8))
    return pictures


def evaluate(folder: Path, count: int) -> dict[str, Score]:
    """Every row of the report for a checkpoint in the diffusers layout."""
    pipeline = StableDiffusionPipeline.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    pipeline.scheduler = DDIMScheduler.from_config(pipeline.scheduler.config)
    pipeline.set_progress_bar_config(disable=True)
    rows: dict[str, Score] = {}
    for split, name in (("train", "unseen"), ("heldout", "held out")):
        rows[f"autoencoder, {name}"] = reconstruction(pipeline.vae, split, SIZES[0], count)
    for size in SIZES:
        number = count if size == SIZES[0] else count // 4
        label = f"{size[0]}x{size[1]}"
        wishes = [full_wish(scene) for scene in scenes("train", size, _unseen("train", number))]
        pictures = drawn(pipeline, wishes, size, seed=1)
        rows[f"unseen prompts, {label}"] = score(pictures, wishes)
        if size == SIZES[0]:
            rows["control: another's prompt"] = score(pictures, wishes[1:] + wishes[:1])
            held = [full_wish(scene) for scene in scenes("heldout", size, _unseen("heldout", number))]
            rows[f"held-out compositions, {label}"] = score(drawn(pipeline, held, size, seed=2), held)
            words = random.Random(3)
            vague = [vague_wish(scene, words) for scene in scenes("train", size, _unseen("train", number))]
            rows[f"vague prompts, {label}"] = score(drawn(pipeline, vague, size, seed=3), vague)
    return rows


def table(rows: dict[str, Score]) -> Table:
    """The report for people."""
    shown = Table("", "pictures", "background", "count", "colour", "shape", "exact")
    for name, row in rows.items():
        shares = (row.background, row.count, row.colour, row.shape, row.exact)
        shown.add_row(name, str(row.pictures), *(f"{share:.3f}" for share in shares))
    return shown


def as_document(rows: dict[str, Score]) -> dict[str, object]:
    """The report as JSON, with what it was made with."""
    return {
        "steps": STEPS,
        "guidance": GUIDANCE,
        "sampler": "ddim",
        "rows": {name: {key: getattr(row, key) for key in Score.__dataclass_fields__} for name, row in rows.items()},
    }


def _share(right: Sequence[bool]) -> float:
    return round(float(np.mean(right)), 4) if right else 1.0


def _unseen(split: Split, count: int) -> range:
    """Seeds that training never takes."""
    start = UNSEEN_SEED if split == "train" else 0
    return range(start, start + count)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m export.train_draw.evaluate", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=400, help="pictures of 64 x 64 px in each row")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--write", action="store_true", help=f"write {REPORT} into the folder")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows = evaluate(arguments.folder, arguments.count)
    Console().print(table(rows))
    if arguments.write:
        (arguments.folder / REPORT).write_text(json.dumps(as_document(rows), indent=2) + "\n")


if __name__ == "__main__":
    main()
