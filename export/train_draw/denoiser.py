"""Text encoder and denoiser, trained together on latents: v-prediction with SD's schedule, reaching deeper into noise.

SD's own schedule ends at a noise 14.6 times the picture, where the mean of a latent, and so the background, still
shows; this one ends at 66. B batch, T tokens, Z latent channels, h and w sides in latents.
"""

from __future__ import annotations

import copy
import random
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import mse_loss
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

from export.train.muon import optimizer_for
from export.train.run import Run, pace
from export.train_draw.pictures import SIZES, latents, scenes
from export.train_draw.tokens import MAX_TOKENS
from export.train_draw.vae import encode, weights_digest
from export.world.scene import Scene
from export.world.wish import full_wish, prompt, vague_wish

TEXT_WIDTH = 128
BATCH = 64
MATRIX_LR, OTHER_LR = 0.02, 2e-3
EMPTY_SHARE, VAGUE_SHARE = 0.1, 0.25  # of prompts
EMA_DECAY = 0.999
SAVE_EVERY = 250
SCHEDULE = {
    "num_train_timesteps": 1000,
    "beta_start": 0.00085,
    "beta_end": 0.02,
    "beta_schedule": "scaled_linear",
    "prediction_type": "v_prediction",
    "timestep_spacing": "trailing",
    "steps_offset": 1,  # of no meaning with trailing; diffusers' pipeline wants it
}


class Drawer(nn.Module):
    """What is trained, and its running mean, which is what draws."""

    def __init__(self, tokenizer: CLIPTokenizer, latent_channels: int) -> None:
        super().__init__()
        text = CLIPTextConfig(
            vocab_size=len(tokenizer),
            hidden_size=TEXT_WIDTH,
            intermediate_size=4 * TEXT_WIDTH,
            projection_dim=TEXT_WIDTH,
            num_hidden_layers=3,
            num_attention_heads=4,
            max_position_embeddings=MAX_TOKENS,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
        unet = UNet2DConditionModel(
            sample_size=8,
            in_channels=latent_channels,
            out_channels=latent_channels,
            down_block_types=("CrossAttnDownBlock2D",) * 2,
            up_block_types=("CrossAttnUpBlock2D",) * 2,
            block_out_channels=(96, 160),
            layers_per_block=1,
            cross_attention_dim=TEXT_WIDTH,
            attention_head_dim=4,  # in diffusers, the number of heads
            norm_num_groups=16,
            use_linear_projection=True,
        )
        self.learner = nn.ModuleDict({"text": CLIPTextModel(text), "unet": unet})
        self.mean = copy.deepcopy(self.learner).requires_grad_(False)

    @torch.no_grad()
    def follow(self, decay: float) -> None:
        """Move the mean towards the learner."""
        means, learnt = list(self.mean.parameters()), list(self.learner.parameters())
        torch._foreach_lerp_(means, learnt, 1 - decay)


class Examples:
    """Latents and prompts of seeds 0..count-1 of each size; the wide and tall ones are an eighth of the squares."""

    def __init__(self, folder: Path, vae: AutoencoderKL, count: int) -> None:
        name = weights_digest(vae)  # a further trained autoencoder has other latents
        self._scale = vae.config.scaling_factor
        self._latents, self._scenes = [], []
        for size in SIZES:
            number = count if size == SIZES[0] else count // 8
            self._latents.append(latents(folder, name, size, number, lambda part: encode(vae, part)))
            self._scenes.append(scenes("train", size, range(number)))

    def batch(self, step: int) -> tuple[Tensor, list[str]]:
        """Scaled latents (B, Z, h, w) and a prompt for each; a function of the step alone."""
        rng, words = np.random.default_rng((11, step)), random.Random(f"prompts-{step}")
        size = 1 + step // 4 % (len(SIZES) - 1) if step % 4 == 3 else 0
        number = BATCH // 2 if size == len(SIZES) - 1 else BATCH
        chosen = rng.integers(len(self._scenes[size]), size=number)
        codes = torch.from_numpy(self._latents[size][chosen].astype(np.float32)) * self._scale
        return codes, [said(self._scenes[size][index], words) for index in chosen]


def said(scene: Scene, words: random.Random) -> str:
    """A prompt for the scene: empty, vague or full."""
    kind = words.random()
    if kind < EMPTY_SHARE:
        return ""
    return prompt(vague_wish(scene, words) if kind < EMPTY_SHARE + VAGUE_SHARE else full_wish(scene), words)


def token_ids(tokenizer: CLIPTokenizer, prompts: list[str]) -> Tensor:
    """(B, T), padded as diffusers pads them."""
    return tokenizer(prompts, padding="max_length", max_length=MAX_TOKENS, return_tensors="pt").input_ids


def train_denoiser(folder: Path, tokenizer: CLIPTokenizer, examples: Examples, channels: int, *, steps: int) -> Drawer:
    """Trains from nothing, or goes on where it was stopped."""
    torch.manual_seed(0)
    drawer = Drawer(tokenizer, channels)
    optimizer = optimizer_for(drawer.learner, convolutions=True, matrix_lr=MATRIX_LR, other_lr=OTHER_LR)
    run = Run(folder / "denoiser.pt", drawer, optimizer)
    noiser = DDPMScheduler(**SCHEDULE)
    total = 0.0
    for step in run.steps(steps, "denoiser"):
        optimizer.set_pace(pace(step, steps))
        codes, prompts = examples.batch(step)
        loss = _loss(drawer.learner, noiser, codes, token_ids(tokenizer, prompts), step)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(drawer.learner.parameters(), 1.0)
        optimizer.step()
        drawer.follow(min(EMA_DECAY, (1 + step) / (10 + step)))
        total += loss.item()
        if step % 50 == 49:
            run.log(f"denoiser {step + 1}: loss {total / 50:.4f}")
            total = 0.0
        if step % SAVE_EVERY == SAVE_EVERY - 1 or step == steps - 1:
            run.save()
    return drawer


def _loss(learner: nn.ModuleDict, noiser: DDPMScheduler, codes: Tensor, ids: Tensor, step: int) -> Tensor:
    """Squared error of the velocity, every timestep alike. Noise and timesteps are functions of the step alone."""
    generator = torch.Generator().manual_seed(step)
    noise = torch.randn(codes.shape, generator=generator)
    # One timestep of each of B equal parts, so that no batch is all noise or all picture.
    parts = (torch.arange(len(codes)) + torch.rand(len(codes), generator=generator)) / len(codes)
    timesteps = (parts * noiser.config.num_train_timesteps).long()
    noisy = noiser.add_noise(codes, noise, timesteps)
    # torch's fused attention takes four times as long backwards as the plain one at these sizes, on a CPU.
    with torch.autocast("cpu", torch.bfloat16), sdpa_kernel(SDPBackend.MATH):
        states = learner["text"](ids).last_hidden_state
        velocity = learner["unet"](noisy, timesteps, states).sample
    return mse_loss(velocity.float(), noiser.get_velocity(codes, noise, timesteps))
