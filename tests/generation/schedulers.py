"""Configs as published, diffusers' scheduler of each sampler, and a small linear model that both can be run with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from proteus.generation.samplers import Sampler
from proteus.generation.schedule import Family, NoiseSchedule
from proteus.generation.task import Floats
from proteus.limits import SamplerName
from proteus.manifest import Prediction

SHAPE = (4, 6, 8)
SAMPLERS: tuple[SamplerName, ...] = ("euler", "ddim", "heun", "dpmpp_2m")
SD15: Mapping[str, Any] = {  # of stable-diffusion-v1-5
    "_class_name": "PNDMScheduler",
    "_diffusers_version": "0.6.0",
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "beta_start": 0.00085,
    "clip_sample": False,
    "num_train_timesteps": 1000,
    "set_alpha_to_one": False,
    "skip_prk_steps": True,
    "steps_offset": 1,
    "trained_betas": None,
}
SD21: Mapping[str, Any] = {  # of stable-diffusion-2-1
    **SD15,
    "_class_name": "DDIMScheduler",
    "prediction_type": "v_prediction",
}
DEMO: Mapping[str, Any] = {
    "_class_name": "DDIMScheduler",
    "beta_end": 0.02,
    "beta_schedule": "scaled_linear",
    "beta_start": 0.00085,
    "clip_sample": False,
    "num_train_timesteps": 1000,
    "prediction_type": "v_prediction",
    "rescale_betas_zero_snr": False,
    "set_alpha_to_one": True,
    "steps_offset": 0,
    "thresholding": False,
    "timestep_spacing": "trailing",
}
SD3: Mapping[str, Any] = {  # of stable-diffusion-3-medium
    "_class_name": "FlowMatchEulerDiscreteScheduler",
    "num_train_timesteps": 1000,
    "shift": 3.0,
}
FLUX_DEV: Mapping[str, Any] = {
    "_class_name": "FlowMatchEulerDiscreteScheduler",
    "base_image_seq_len": 256,
    "base_shift": 0.5,
    "max_image_seq_len": 4096,
    "max_shift": 1.15,
    "num_train_timesteps": 1000,
    "shift": 3.0,
    "use_dynamic_shifting": True,
}
FLUX_SCHNELL: Mapping[str, Any] = {**FLUX_DEV, "shift": 1.0, "use_dynamic_shifting": False}


@dataclass(frozen=True, kw_only=True)
class Case:
    config: Mapping[str, Any]
    prediction: Prediction
    family: Family
    latent_tokens: int | None = None


PUBLISHED = {
    "sd15": Case(config=SD15, prediction="epsilon", family="unet"),
    "sd21": Case(config=SD21, prediction="v_prediction", family="unet"),
    "demo": Case(config=DEMO, prediction="v_prediction", family="unet"),
    "sd3": Case(config=SD3, prediction="flow", family="sd3"),
    "flux-dev": Case(config=FLUX_DEV, prediction="flow", family="flux", latent_tokens=1024),
    "flux-schnell": Case(config=FLUX_SCHNELL, prediction="flow", family="flux", latent_tokens=1024),
}


class LinearModel:
    """Mixes the channels of its input by a fixed matrix that turns a little with the timestep."""

    def __init__(self, channels: int, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self._still, self._turning = random.normal(0, 0.4, (2, channels, channels)).astype(np.float32)
        self._bias = random.normal(0, 0.3, (channels, 1, 1)).astype(np.float32)

    def __call__(self, latent: Floats, timestep: float) -> Floats:
        matrix = self._still + np.float32(timestep / 1000) * self._turning
        mixed: Floats = np.einsum("cd,dhw->chw", matrix, latent) + self._bias
        return mixed


@dataclass(frozen=True)
class Run:
    timesteps: list[float]
    first: Floats  # latent
    latents: list[Floats]  # after each evaluation
    cleans: list[Floats]  # at each evaluation


def random_noise(seed: int = 1, shape: tuple[int, ...] = SHAPE) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def schedule_of(case: Case) -> NoiseSchedule:
    return NoiseSchedule.from_config(case.config, case.prediction, case.family)


def draw(case: Case, sampler: SamplerName, steps: int, noise: Floats) -> Run:
    """Ours."""
    picture = Sampler(schedule_of(case).grid(steps, sampler, case.latent_tokens)).start(noise)
    model, run = LinearModel(noise.shape[0]), Run([], picture.latent, [], [])
    while picture.evaluations_left:
        run.timesteps.append(picture.timestep)
        picture.advance(model(picture.model_input(), picture.timestep))
        run.latents.append(picture.latent)
        run.cleans.append(picture.clean)
    return run
