"""A linear map from latents to colours, so that a preview costs no decoder, fitted to drawn pictures.

n pictures, Z latent channels, h and w sides in latents, f px a latent.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from export.diffusion_checkpoint import Parts
from export.diffusion_graphs import DrawShape
from export.world.draw import draw
from export.world.wish import drawing

PICTURES, BATCH = 500, 50
LEAST_SIDE_PX = 64
# Standard deviation, beside about 1 of the latents together: what a preview gets is only an estimate. Without it,
# channels that an autoencoder hardly uses get large weights, and the estimate's errors in them drown the picture.
NOISE = 0.1


@torch.no_grad()
def preview_map(parts: Parts, shape: DrawShape) -> list[list[float]]:
    """(Z + 1, 3): a clean latent, and 1, to the RGB (0…1) of its f x f px as the decoder would paint them."""
    multiple_px = shape.vae_factor * shape.size_multiple
    side_px = -(-LEAST_SIDE_PX // multiple_px) * multiple_px
    scale, shift = parts.vae.config.scaling_factor, parts.vae.config.shift_factor or 0.0
    latents, colours = [], []
    for start in range(0, PICTURES, BATCH):
        scenes = [drawing("train", seed, width_px=side_px, height_px=side_px) for seed in range(start, start + BATCH)]
        pictures = torch.from_numpy(np.stack([np.asarray(draw(scene)) for scene in scenes]))
        codes = parts.vae.encode(pictures.permute(0, 3, 1, 2).float() / 127.5 - 1).latent_dist.mode()
        painted = (parts.vae.decode(codes).sample / 2 + 0.5).clamp(0, 1)
        latents.append(((codes - shift) * scale).movedim(1, -1).flatten(0, 2))
        colours.append(torch.nn.functional.avg_pool2d(painted, shape.vae_factor).movedim(1, -1).flatten(0, 2))
    return fit(torch.cat(latents), torch.cat(colours))


def fit(latents: Tensor, colours: Tensor) -> list[list[float]]:
    """(Z + 1, 3), from latents (N, Z) and colours (N, 3): least squares for latents with NOISE on every channel."""
    known = torch.cat([latents, torch.ones(len(latents), 1)], dim=1).double()
    noise = torch.full((known.shape[1],), NOISE**2 * len(latents), dtype=torch.float64)
    noise[-1] = 0.0
    solved = torch.linalg.solve(known.T @ known + noise.diag(), known.T @ colours.double())
    rounded: list[list[float]] = solved.numpy().round(6).tolist()
    return rounded
