"""First training: the vision tower on the scene graph itself, one label per patch and question (see data.DENSE).

Sees a picture's patches only; what it learns here, the connector later turns into words.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import CLIPVisionConfig, CLIPVisionModel

from export.train.data import DENSE, GRID, PATCH_PX, PICTURE_PX, Pictures, UInt8s
from export.train.muon import optimizer_for
from export.train.run import Run, pace

BATCH = 64
_NOTHING_WEIGHT = 0.25  # most patches are empty: their class counts less


def tower_config() -> CLIPVisionConfig:
    return CLIPVisionConfig(
        hidden_size=192,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=6,
        image_size=PICTURE_PX,
        patch_size=PATCH_PX,
        hidden_act="gelu",
    )


class DenseTower(nn.Module):
    """The CLIP-style tower with one linear head per dense label; heads are thrown away after training."""

    def __init__(self, tower: CLIPVisionModel) -> None:
        super().__init__()
        self.tower = tower
        width = tower.config.hidden_size
        self.heads = nn.ModuleDict({name: nn.Linear(width, classes) for name, classes in DENSE.items()})

    def features(self, pixel_values: Tensor) -> Tensor:
        """(B, 3, P, P) → (B, N, width), CLS dropped."""
        return self.tower(pixel_values, output_hidden_states=True).hidden_states[-1][:, 1:]

    def loss(self, features: Tensor, labels: Tensor) -> tuple[Tensor, dict[str, float]]:
        """Mean loss and, per label, the accuracy on patches where something is."""
        total, right = features.new_zeros(()), {}
        for index, (name, head) in enumerate(self.heads.items()):
            logits, truth = head(features).flatten(0, 1), labels[..., index].flatten()
            weight = torch.ones(DENSE[name])
            weight[: 3 if name == "colour" else 1] = _NOTHING_WEIGHT
            total = total + cross_entropy(logits, truth, weight)
            there = truth > (2 if name == "colour" else 0)
            right[name] = (logits.argmax(-1) == truth)[there].float().mean().item()
        return total, right


def normalise(pixels: UInt8s) -> Tensor:
    """uint8 (B, P, P, 3) → float (B, 3, P, P) in -1..1, as the image processor does with mean and deviation 0.5."""
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).float().div_(127.5).sub_(1)


def dense_targets(pictures: Pictures, seeds: np.ndarray) -> Tensor:
    return torch.from_numpy(pictures.labels(seeds)).long().view(len(seeds), GRID * GRID, len(DENSE))


def train_tower(folder: Path, pictures: Pictures, heldout: Pictures, *, steps: int, log_every: int = 50) -> DenseTower:
    """Train, or go on from `folder/tower.pt`, up to `steps`; prints held-out accuracy of occupied patches."""
    torch.manual_seed(0)
    model = DenseTower(CLIPVisionModel(tower_config()))
    optimizer = optimizer_for(model)
    run = Run(folder / "tower.pt", model, optimizer)
    rng = np.random.default_rng(run.step)
    started = time.monotonic()
    for step in run.steps(steps, "vision tower"):
        optimizer.set_pace(pace(step, steps))
        seeds = rng.integers(0, pictures.count, BATCH)
        loss, _ = model.loss(model.features(normalise(pictures.pixels(seeds))), dense_targets(pictures, seeds))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % log_every == 0 or step + 1 == steps:
            accuracy = evaluate_tower(model, heldout)
            words = " ".join(f"{name} {value:.3f}" for name, value in accuracy.items())
            run.log(f"tower step {step + 1} loss {loss.item():.3f} {words} {time.monotonic() - started:.0f} s")
            run.save()
    return model


@torch.no_grad()
def evaluate_tower(model: DenseTower, heldout: Pictures, count: int = 512) -> dict[str, float]:
    seeds = np.arange(min(count, heldout.count))
    return model.loss(model.features(normalise(heldout.pixels(seeds))), dense_targets(heldout, seeds))[1]
