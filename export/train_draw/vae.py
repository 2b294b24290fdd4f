"""The autoencoder: 8 x 8 px to one latent. Trained first and alone: nothing that is drawn can be better than it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import mse_loss

from export.train.muon import optimizer_for
from export.train.run import Run, pace
from export.train_draw.pictures import SIZES, pictures

LATENT_CHANNELS = 8
BATCH = 32
MATRIX_LR, OTHER_LR = 0.02, 2e-3
KL_WEIGHT, OBJECT_WEIGHT = 1e-5, 3.0
SAVE_EVERY = 250


def fresh_vae(latent_channels: int = LATENT_CHANNELS) -> AutoencoderKL:
    """Thin where the picture is large; the two lowest levels hold most of the 1.7 M weights."""
    channels = (16, 32, 64, 96)
    return AutoencoderKL(
        in_channels=3,
        out_channels=3,
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=channels,
        layers_per_block=1,
        latent_channels=latent_channels,
        norm_num_groups=8,
        mid_block_add_attention=False,
        sample_size=64,
    )


def to_tensor(picture: NDArray[np.uint8]) -> Tensor:
    """(B, H, W, 3) 8 bits to (B, 3, H, W) in -1..1."""
    return torch.from_numpy(picture).permute(0, 3, 1, 2).float() / 127.5 - 1


def to_pixels(tensor: Tensor) -> NDArray[np.uint8]:
    """(B, 3, H, W) in -1..1 to (B, H, W, 3) 8 bits, rounded as diffusers' image processor does."""
    unit = (tensor.float() / 2 + 0.5).clamp(0, 1).permute(0, 2, 3, 1).numpy()
    return (unit * 255).round().astype(np.uint8)


def train_vae(folder: Path, *, steps: int, count: int, latent_channels: int = LATENT_CHANNELS) -> AutoencoderKL:
    """Trains on `count` pictures of every size, or goes on where it was stopped; sets `scaling_factor` at the end."""
    torch.manual_seed(0)
    vae = fresh_vae(latent_channels)
    optimizer = optimizer_for(vae, convolutions=True, matrix_lr=MATRIX_LR, other_lr=OTHER_LR)
    run = Run(folder / "vae.pt", vae, optimizer)
    squares = pictures(folder / "pictures", SIZES[0], count)
    others = [pictures(folder / "pictures", size, count // 8) for size in SIZES[1:]]
    total = 0.0
    for step in run.steps(steps, "autoencoder"):
        rng = np.random.default_rng((7, step))
        source = others[step // 6 % len(others)] if step % 6 == 5 else squares
        batch = to_tensor(source[rng.integers(len(source), size=BATCH)])
        optimizer.set_pace(pace(step, steps))
        loss = _loss(vae, batch)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        optimizer.step()
        total += loss.item()
        if step % 50 == 49:
            run.log(f"autoencoder {step + 1}: loss {total / 50:.4f}")
            total = 0.0
        if step % SAVE_EVERY == SAVE_EVERY - 1 or step == steps - 1:
            run.save()
    vae.eval()
    codes = encode(vae, squares[:2_000]).astype(np.float32)
    vae.register_to_config(scaling_factor=round(float(1 / codes.std()), 4))
    return vae


def _loss(vae: AutoencoderKL, batch: Tensor) -> Tensor:
    """Absolute and squared error, more where something is drawn, and the usual small KL term."""
    with torch.autocast("cpu", torch.bfloat16):
        posterior = vae.encode(batch).latent_dist
        decoded = vae.decode(posterior.sample()).sample
    decoded = decoded.float()
    ground = batch.flatten(2).median(dim=2).values[:, :, None, None]
    drawn = ((batch - ground).abs().amax(dim=1, keepdim=True) > 0.1).float()
    weight = 1 + OBJECT_WEIGHT * drawn
    error = (weight * (decoded - batch).abs()).mean() + mse_loss(decoded, batch)
    return error + KL_WEIGHT * posterior.kl().float().mean()


def weights_digest(vae: AutoencoderKL) -> str:
    """Names the weights: 16 hex digits of their SHA-256."""
    digest = hashlib.sha256()
    for tensor in vae.state_dict().values():
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


@torch.inference_mode()
def encode(vae: AutoencoderKL, picture: NDArray[np.uint8]) -> NDArray[np.float32]:
    """(count, H, W, 3) to the modes of the posterior, not yet scaled, (count, Z, h, w)."""
    parts = [vae.encode(to_tensor(picture[at : at + 100])).latent_dist.mode() for at in range(0, len(picture), 100)]
    return torch.cat(parts).float().numpy()


@torch.inference_mode()
def decode(vae: AutoencoderKL, codes: NDArray[np.float32]) -> NDArray[np.uint8]:
    """(count, Z, h, w), not scaled, to (count, H, W, 3)."""
    parts = [to_pixels(vae.decode(torch.from_numpy(codes[at : at + 100])).sample) for at in range(0, len(codes), 100)]
    return np.concatenate(parts)
