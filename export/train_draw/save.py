"""Writes what was trained in the diffusers layout: a StableDiffusionPipeline, weights in half precision."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import torch
from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline
from transformers import CLIPTokenizer

from export.train_draw.denoiser import SCHEDULE, Drawer

_PARTS = ("text_encoder", "tokenizer", "unet", "vae", "scheduler")


def save_checkpoint(folder: Path, drawer: Drawer, vae: AutoencoderKL, tokenizer: CLIPTokenizer) -> None:
    """`folder` gets model_index.json and a folder for each part; what else lies there stays."""
    mean = copy.deepcopy(drawer.mean)
    pipeline = StableDiffusionPipeline(
        vae=copy.deepcopy(vae),
        text_encoder=mean["text"],
        tokenizer=tokenizer,
        unet=mean["unet"],
        scheduler=DDIMScheduler(**SCHEDULE, set_alpha_to_one=True, clip_sample=False),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    ).to(torch.float16)
    for part in _PARTS:
        shutil.rmtree(folder / part, ignore_errors=True)
    pipeline.save_pretrained(folder)
    for path in folder.rglob("*.safetensors"):
        path.chmod(0o644)  # safetensors writes it for the owner alone
