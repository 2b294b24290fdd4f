"""What drawing is measured on: the demo's deployment, one of another checkpoint, or one of random weights."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from proteus.deployment import Deployment

CHECKPOINT = Path("checkpoints/draw")
DEMO = Path("deployments/demo.toml")
KEPT = Path("var/perf-draw")  # exports, made once for each revision
RANDOM = KEPT / "random"


def choose(checkpoint: Path | None) -> tuple[Path, Deployment]:
    """The folder in diffusers' layout and what serves it. None: the demo's, or random weights until it is trained."""
    from export.diffusion_checkpoint import is_draw_checkpoint, read_draw_checkpoint
    from export.diffusion_repository import export_draw_checkpoint

    torch.set_num_threads(1)
    if checkpoint is None:
        checkpoint = CHECKPOINT if is_draw_checkpoint(CHECKPOINT) else RANDOM
    if checkpoint == RANDOM and not is_draw_checkpoint(RANDOM):
        write_random(RANDOM)
    demo = Deployment.load(DEMO)
    if demo.draws and demo.drawing.checkpoint_path == checkpoint.resolve():
        return checkpoint, demo
    out = KEPT / read_draw_checkpoint(checkpoint).revision()[:12]
    if not (out / "deployment.toml").exists():
        export_draw_checkpoint(checkpoint, out, progress=_say)
    return checkpoint, Deployment.load(out / "deployment.toml")


def _say(step: str) -> None:
    sys.stderr.write(f"perf-draw: {step}\n")  # standard output is for the records
    sys.stderr.flush()


def write_random(folder: Path) -> None:
    """The demo's parts before any training: as fast as when they are trained."""
    from export.train_draw.denoiser import Drawer
    from export.train_draw.save import save_checkpoint
    from export.train_draw.tokens import build_tokenizer
    from export.train_draw.vae import LATENT_CHANNELS, fresh_vae

    torch.manual_seed(0)
    tokenizer = build_tokenizer()
    save_checkpoint(folder, Drawer(tokenizer, LATENT_CHANNELS), fresh_vae(), tokenizer)
