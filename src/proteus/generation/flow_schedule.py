"""Schedules of flow models (SD3, Flux): noise falls from 1 to 0 along a line, shifted towards noise for large pictures.

A latent is (1 - sigma) · clean + sigma · noise, and the denoiser's timestep is sigma times the timesteps of training.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from proteus.families.checkpoint import ConfigTable
from proteus.generation.grid import Grid, Level
from proteus.generation.task import Floats
from proteus.limits import SamplerName

FLOW_CLASSES = ("FlowMatchEulerDiscreteScheduler", "FlowMatchHeunDiscreteScheduler")
_Sigmas = npt.NDArray[np.floating[Any]]
# What diffusers offers and no text-to-image checkpoint that we serve asks for.
_ONLY = {
    "use_karras_sigmas": False,
    "use_exponential_sigmas": False,
    "use_beta_sigmas": False,
    "invert_sigmas": False,
    "stochastic_sampling": False,
    "time_shift_type": "exponential",
}


class FlowSchedule:
    def __init__(self, table: ConfigTable, *, spaced_by_pipeline: bool) -> None:
        """`spaced_by_pipeline`: the Euler scheduler gets its sigmas of FluxPipeline. Raises UnsupportedCheckpoint."""
        for key, value in _ONLY.items():
            table.one_of(key, (value,), value)
        if "shift_terminal" in table:
            raise table.wrong("shift_terminal", table.get("shift_terminal"), "none")
        self.num_train_timesteps = table.positive("num_train_timesteps", 1000, most=100_000)
        self._shift = table.number("shift", 1.0)
        if self._shift <= 0:
            raise table.wrong("shift", self._shift, "above 0")
        self._is_dynamic = table.flag("use_dynamic_shifting", False)
        self._base_shift, self._max_shift = table.number("base_shift", 0.5), table.number("max_shift", 1.15)
        self._base_tokens = table.positive("base_image_seq_len", 256)
        self._max_tokens = table.positive("max_image_seq_len", 4096)
        if self._max_tokens <= self._base_tokens:
            raise table.wrong("max_image_seq_len", self._max_tokens, f"above base_image_seq_len = {self._base_tokens}")
        self._spaced_by_pipeline = spaced_by_pipeline

    def grid(self, steps: int, sampler: SamplerName, latent_tokens: int | None) -> Grid:
        sampler = "euler" if sampler == "ddim" else sampler
        if sampler == "dpmpp_2m":
            spaced = self._spaced_for_multistep(steps, latent_tokens)
            timesteps = np.trunc(spaced * self.num_train_timesteps)
            sigmas = spaced.astype(np.float32)
        else:
            sigmas = self._spaced_for_heun(steps) if sampler == "heun" else self._spaced_for_euler(steps, latent_tokens)
            timesteps = sigmas * np.float32(self.num_train_timesteps)
        levels = [Level(1.0 - sigma, sigma) for sigma in (*sigmas.tolist(), 0.0)]
        return Grid(
            sampler=sampler,
            prediction="flow",
            timesteps=tuple(timesteps.tolist()),
            before=tuple(levels[:-1]),
            after=tuple(levels[1:]),
            input_scales=(1.0,) * steps,
            initial_scale=1.0,
        )

    def _spaced_for_euler(self, steps: int, latent_tokens: int | None) -> Floats:
        if self._spaced_by_pipeline:
            spaced: _Sigmas = np.linspace(1.0, 1 / steps, steps).astype(np.float32)
        else:
            spaced = self._between_ends(steps, shifted=not self._is_dynamic)
        factor = self._dynamic_factor(latent_tokens) if self._is_dynamic else self._shift
        return _shifted(spaced, factor).astype(np.float32)

    def _spaced_for_heun(self, steps: int) -> Floats:
        """FlowMatchHeunDiscreteScheduler knows the static shift only."""
        return _shifted(self._between_ends(steps, shifted=True), self._shift).astype(np.float32)

    def _spaced_for_multistep(self, steps: int, latent_tokens: int | None) -> _Sigmas:
        """Without the end at 0, and so that the first is below 1, where signal over noise has no logarithm."""
        factor = self._dynamic_factor(latent_tokens) if self._is_dynamic else self._shift
        rising = 1.0 - np.linspace(1, 1 / self.num_train_timesteps, steps + 1)
        return _shifted(rising, factor)[:0:-1]

    def _between_ends(self, steps: int, *, shifted: bool) -> _Sigmas:
        """Even, between the ends of training. diffusers shifts the ends first, and then all again."""
        most = self.num_train_timesteps
        ends: _Sigmas = np.array([most, 1], dtype=np.float32) / np.float32(most)
        first, last = (_shifted(ends, self._shift) if shifted else ends).tolist()
        spaced: _Sigmas = np.linspace(first * most, last * most, steps) / most
        return spaced

    def _dynamic_factor(self, latent_tokens: int | None) -> float:
        """exp(mu), mu growing evenly with the tokens of the picture."""
        if latent_tokens is None:
            raise ValueError("this schedule is shifted by the size of the picture: latent_tokens must be given")
        slope = (self._max_shift - self._base_shift) / (self._max_tokens - self._base_tokens)
        return math.exp(self._base_shift + slope * (latent_tokens - self._base_tokens))


def _shifted(sigmas: _Sigmas, factor: float) -> _Sigmas:
    """1 stays 1, 0 stays 0; a factor above 1 spends more steps near noise."""
    shifted: _Sigmas = factor * sigmas / (1 + (factor - 1) * sigmas)
    return shifted
