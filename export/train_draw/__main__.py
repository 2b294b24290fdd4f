"""`python -m export.train_draw`: trains the drawing checkpoint on the drawn world, from nothing or from where it was.

1. the autoencoder, up to its gate, 2. text encoder and denoiser together, 3. the report of the rule verifier.
Everything it needs to go on lies in --folder; delete that folder to begin again.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch
from rich.console import Console

from export.train_draw.denoiser import Examples, train_denoiser
from export.train_draw.evaluate import REPORT, as_document, evaluate, reconstruction, table
from export.train_draw.pictures import SIZES
from export.train_draw.save import save_checkpoint
from export.train_draw.tokens import build_tokenizer
from export.train_draw.vae import LATENT_CHANNELS, train_vae

COLOUR_GATE, SHAPE_GATE = 0.98, 0.95  # of the autoencoder, before the denoiser is begun


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m export.train_draw", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path("var/train-draw"), help="the run's state and pictures")
    parser.add_argument("--out", type=Path, default=Path("checkpoints/draw"))
    parser.add_argument("--vae-steps", type=int, default=1_300)
    parser.add_argument("--steps", type=int, default=4_500)
    parser.add_argument("--pictures", type=int, default=72_000)
    parser.add_argument("--count", type=int, default=400, help="pictures of each row of the report")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    console = Console(stderr=True)
    vae = train_vae(arguments.folder, steps=arguments.vae_steps, count=min(arguments.pictures, 16_000))
    kept = reconstruction(vae, "train", SIZES[0], arguments.count)
    console.log(f"autoencoder: colour {kept.colour:.3f}, shape {kept.shape:.3f} (gate {COLOUR_GATE}, {SHAPE_GATE})")
    if kept.colour < COLOUR_GATE or kept.shape < SHAPE_GATE:
        console.log("the denoiser cannot draw what the autoencoder does not keep: raise --vae-steps and start again")
        return 1
    tokenizer = build_tokenizer()
    examples = Examples(arguments.folder / "pictures", vae, arguments.pictures)
    drawer = train_denoiser(arguments.folder, tokenizer, examples, LATENT_CHANNELS, steps=arguments.steps)
    save_checkpoint(arguments.out, drawer, vae, tokenizer)
    rows = evaluate(arguments.out, arguments.count)
    console.print(table(rows))
    (arguments.out / REPORT).write_text(json.dumps(as_document(rows), indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
