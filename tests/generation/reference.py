"""What diffusers makes of the same config, noise and model: its own scheduler, stepped as its pipelines step it."""

from __future__ import annotations

from typing import Any

import diffusers
import numpy as np
import torch

from proteus.generation.task import Floats
from proteus.limits import SamplerName
from tests.generation.schedulers import Case, LinearModel, Run

VP = {
    "euler": diffusers.EulerDiscreteScheduler,
    "ddim": diffusers.DDIMScheduler,
    "heun": diffusers.HeunDiscreteScheduler,
    "dpmpp_2m": diffusers.DPMSolverMultistepScheduler,
}
FLOW = {
    "euler": diffusers.FlowMatchEulerDiscreteScheduler,
    "ddim": diffusers.FlowMatchEulerDiscreteScheduler,
    "heun": diffusers.FlowMatchHeunDiscreteScheduler,
    "dpmpp_2m": diffusers.DPMSolverMultistepScheduler,
}


def scheduler_of(case: Case, sampler: SamplerName, steps: int) -> Any:
    """Of the folder's config, its timesteps set."""
    if case.prediction != "flow":
        scheduler = VP[sampler].from_config(case.config, prediction_type=case.prediction)
        scheduler.set_timesteps(steps)
        return scheduler
    if sampler == "dpmpp_2m":
        # diffusers leaves flow_shift at 1 unless it is told; dynamic shifting overrides it.
        scheduler = VP[sampler].from_config(
            case.config,
            prediction_type="flow_prediction",
            use_flow_sigmas=True,
            flow_shift=case.config.get("shift", 1.0),
        )
    else:
        scheduler = FLOW[sampler].from_config(case.config)
    given: dict[str, Any] = {}
    is_euler = sampler in ("euler", "ddim")
    if scheduler.config.get("use_dynamic_shifting") and sampler != "heun":
        given["mu"] = shift_of(case)
    if is_euler and case.family == "flux":
        given["sigmas"] = np.linspace(1.0, 1 / steps, steps)
    scheduler.set_timesteps(steps, **given)
    return scheduler


def shift_of(case: Case) -> float:
    from diffusers.pipelines.flux.pipeline_flux import calculate_shift

    keys = ("base_image_seq_len", "max_image_seq_len", "base_shift", "max_shift")
    return float(calculate_shift(case.latent_tokens, *(case.config[key] for key in keys)))


def draw(case: Case, sampler: SamplerName, steps: int, noise: Floats) -> Run:
    scheduler, model = scheduler_of(case, sampler, steps), LinearModel(noise.shape[0])
    is_scaled = hasattr(scheduler, "scale_model_input")
    latent = torch.from_numpy(noise) * getattr(scheduler, "init_noise_sigma", 1.0)
    run = Run([], latent.numpy(), [], [])
    for timestep in scheduler.timesteps:
        given = scheduler.scale_model_input(latent, timestep) if is_scaled else latent
        prediction = torch.from_numpy(model(given.numpy(), float(timestep)))
        answer = scheduler.step(prediction[None], timestep, latent[None])
        run.timesteps.append(float(timestep))
        latent = answer.prev_sample[0]
        run.latents.append(latent.numpy())
        if "pred_original_sample" in answer:
            run.cleans.append(answer.pred_original_sample[0].numpy())
    return run
