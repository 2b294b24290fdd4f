"""`python -m export.train`: trains the demo's LLaVA on the drawn world, from nothing or from where it stopped.

1. the vision tower on the scene graph (dense labels), 2. connector, decoder and tower on questions, 3. the table.
Everything it needs to go on lies in --folder; delete that folder to begin again.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

import torch
from rich.console import Console
from transformers import CLIPVisionModel

from export.train.data import Pictures
from export.train.evaluate import accuracy_table, held_out_accuracy
from export.train.tokens import build_tokenizer
from export.train.tower import DenseTower, tower_config, train_tower
from export.train.vlm import Trainee, fresh, from_checkpoint, train_vlm


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m export.train", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path("var/train"), help="the run's state and pictures")
    parser.add_argument("--out", type=Path, default=Path("checkpoints/demo"))
    parser.add_argument("--from", dest="start", type=Path, help="go on from this checkpoint instead of from nothing")
    parser.add_argument("--tower-steps", type=int, default=700)
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--pictures", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    pictures = Pictures(arguments.folder / "pictures", "train", arguments.pictures)
    tokenizer = build_tokenizer()
    trainee = from_checkpoint(arguments.start) if arguments.start else _trained_tower(arguments, pictures)
    model = train_vlm(arguments.folder, arguments.out, tokenizer, trainee, pictures, steps=arguments.steps)
    rows = held_out_accuracy(model, tokenizer, quiet=False)
    Console().print(accuracy_table(rows))
    report = {type_: asdict(row) for type_, row in rows.items()}
    (arguments.out / "accuracy.json").write_text(json.dumps(report, indent=2) + "\n")


def _trained_tower(arguments: argparse.Namespace, pictures: Pictures) -> Trainee:
    if (arguments.folder / "vlm.pt").exists():
        dense = DenseTower(CLIPVisionModel(tower_config()))  # its weights come with the run's state
    else:
        heldout = Pictures(arguments.folder / "pictures", "heldout", 2_000)
        dense = train_tower(arguments.folder, pictures, heldout, steps=arguments.tower_steps)
    return fresh(build_tokenizer(), dense)


if __name__ == "__main__":
    main()
