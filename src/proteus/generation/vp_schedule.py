"""Variance-preserving schedules (Stable Diffusion 1 and 2): betas of training, and which of its timesteps a run visits.

`alphas` are the running products of 1 - beta: a latent at timestep t is √alpha · clean + √(1 - alpha) · noise. The k-
diffusion scale, which Euler and Heun keep, divides that by √alpha: clean + sigma · noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from proteus.families.checkpoint import ConfigTable
from proteus.generation.grid import Grid, Level
from proteus.generation.task import Floats
from proteus.limits import SamplerName
from proteus.manifest import Prediction

VP_CLASSES = (
    "DDIMScheduler",
    "DDPMScheduler",
    "DEISMultistepScheduler",
    "DPMSolverMultistepScheduler",
    "DPMSolverSinglestepScheduler",
    "EulerAncestralDiscreteScheduler",
    "EulerDiscreteScheduler",
    "HeunDiscreteScheduler",
    "KDPM2AncestralDiscreteScheduler",
    "KDPM2DiscreteScheduler",
    "LMSDiscreteScheduler",
    "PNDMScheduler",
    "UniPCMultistepScheduler",
)
_Doubles = npt.NDArray[np.float64]
_SPACINGS = ("linspace", "leading", "trailing")
ALMOST_NONE = 2.0**-24  # signal of the noisiest timestep where it would be 0 and sigma infinite
KARRAS_RHO = 7.0  # arXiv 2206.00364
# What diffusers offers and no text-to-image checkpoint that we serve asks for.
_ONLY: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "use_exponential_sigmas": (False,),
        "use_beta_sigmas": (False,),
        "use_lu_lambdas": (False,),
        "use_flow_sigmas": (False,),
        "thresholding": (False,),
        "interpolation_type": ("linear",),
        "timestep_type": ("discrete",),
        "variance_type": ("fixed_small", "fixed_small_log", "fixed_large", "fixed_large_log"),
        "lambda_min_clipped": (-math.inf,),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Class:
    """What diffusers' class of a sampler makes of a config: its defaults, and the keys that it does not know."""

    first_beta: float = 0.0001
    last_beta: float = 0.02
    spacing: str = "linspace"
    knows_zero_snr: bool = True
    knows_final_sigma: bool = False


_CLASSES: Mapping[SamplerName, _Class] = MappingProxyType(
    {
        "euler": _Class(knows_final_sigma=True),
        "ddim": _Class(spacing="leading"),
        "heun": _Class(first_beta=0.00085, last_beta=0.012, knows_zero_snr=False),
        "dpmpp_2m": _Class(knows_final_sigma=True),
    }
)


class VpSchedule:
    def __init__(self, table: ConfigTable, prediction: Prediction) -> None:
        """Raises UnsupportedCheckpoint."""
        for key, values in _ONLY.items():
            table.one_of(key, values, values[0])
        self.num_train_timesteps = table.positive("num_train_timesteps", 1000, most=100_000)
        self._has_zero_snr = table.flag("rescale_betas_zero_snr", False)
        if self._has_zero_snr and prediction == "epsilon":
            raise table.wrong("rescale_betas_zero_snr", True, "false for epsilon: all noise tells nothing")
        self._prediction = prediction
        self._uses_karras = table.flag("use_karras_sigmas", False)
        self._is_cosine = table.get("beta_schedule") == "squaredcos_cap_v2"
        self._offset = table.positive("steps_offset") if table.get("steps_offset") else 0
        self._ends_clean = table.flag("set_alpha_to_one", True)
        self._ends_at_zero = table.one_of("final_sigmas_type", ("zero", "sigma_min"), "zero") == "zero"
        self._ends = tuple(table.number(key, 0.0) or None for key in ("sigma_max", "sigma_min"))
        self._clip = table.number("clip_sample_range", 1.0) if table.flag("clip_sample", True) else None
        self._spacing: dict[SamplerName, str] = {}
        self._alphas: dict[SamplerName, Floats] = {}
        for sampler, known in _CLASSES.items():
            self._spacing[sampler] = table.one_of("timestep_spacing", _SPACINGS, known.spacing)
            self._alphas[sampler] = self._running_products(table, known)

    def grid(self, steps: int, sampler: SamplerName, latent_tokens: int | None) -> Grid:
        return self._ddim(steps) if sampler == "ddim" else self._by_sigmas(steps, sampler)

    def _by_sigmas(self, steps: int, sampler: SamplerName) -> Grid:
        """Euler and Heun keep the k-diffusion scale, 2M the denoiser's own."""
        alphas = self._alphas[sampler].copy()
        if self._has_zero_snr and _CLASSES[sampler].knows_zero_snr:
            alphas[-1] = ALMOST_NONE
        trained = ((1 - alphas) / alphas) ** 0.5
        timesteps, visited = self._visited(steps, sampler, trained)
        last = 0.0 if self._ends_at_zero or not _CLASSES[sampler].knows_final_sigma else trained[0]
        sigmas = [float(sigma) for sigma in np.append(visited, last).astype(np.float32)]
        scales = [1 / math.sqrt(sigma * sigma + 1) for sigma in sigmas]
        keeps_sigma = sampler != "dpmpp_2m"
        if keeps_sigma:
            levels = [Level(1.0, sigma) for sigma in sigmas]
            first = 1 / scales[0] if self._spacing[sampler] == "leading" else sigmas[0]
        else:
            levels = [Level(scale, sigma * scale) for sigma, scale in zip(sigmas, scales, strict=True)]
            first = 1.0
        return Grid(
            sampler=sampler,
            prediction=self._prediction,
            timesteps=tuple(timesteps.astype(np.float32).tolist()),
            before=tuple(levels[:-1]),
            after=tuple(levels[1:]),
            input_scales=tuple(scales[:-1]) if keeps_sigma else (1.0,) * steps,
            initial_scale=first,
        )

    def _ddim(self, steps: int) -> Grid:
        """The level after a step is an even stride of timesteps below, also where the next timestep is not."""
        alphas = self._alphas["ddim"].astype(np.float64)
        timesteps = np.minimum(self._spaced("ddim", steps).round(), self.num_train_timesteps - 1).astype(np.int64)
        followed = timesteps - self.num_train_timesteps // steps
        beyond = 1.0 if self._ends_clean else alphas[0]
        after = np.where(followed >= 0, alphas[followed], beyond)
        return Grid(
            sampler="ddim",
            prediction=self._prediction,
            timesteps=tuple(timesteps.astype(np.float64).tolist()),
            before=tuple(Level(math.sqrt(alpha), math.sqrt(1 - alpha)) for alpha in alphas[timesteps].tolist()),
            after=tuple(Level(math.sqrt(alpha), math.sqrt(1 - alpha)) for alpha in after.tolist()),
            input_scales=(1.0,) * steps,
            initial_scale=1.0,
            clip=self._clip,
        )

    def _visited(self, steps: int, sampler: SamplerName, trained: Floats) -> tuple[_Doubles, _Doubles]:
        """Timesteps and sigmas, noisiest first."""
        if sampler == "dpmpp_2m":
            return self._visited_by_multistep(steps, trained)
        timesteps = self._spaced(sampler, steps)
        sigmas = np.interp(timesteps, np.arange(len(trained)), trained)
        if not self._uses_karras:
            return timesteps, sigmas
        sigmas = self._karras(steps, sigmas[0], sigmas[-1])
        return _timesteps_of(sigmas, trained), sigmas

    def _visited_by_multistep(self, steps: int, trained: Floats) -> tuple[_Doubles, _Doubles]:
        """Whole timesteps only; without Karras one more is spaced and the cleanest left out."""
        if self._uses_karras:
            sigmas = self._karras(steps, float(trained[-1]), float(trained[0]))
            timesteps = _timesteps_of(sigmas, trained)
            # diffusers cuts these off; what rounding left a hair below a whole timestep is that timestep.
            return np.floor(timesteps + 1e-4) if self._is_cosine else timesteps.round(), sigmas
        if self._spacing["dpmpp_2m"] == "trailing":
            timesteps = self._spaced("dpmpp_2m", steps)
        else:
            timesteps = self._spaced("dpmpp_2m", steps + 1).round()[:-1]
        return timesteps, np.interp(timesteps, np.arange(len(trained)), trained)

    def _spaced(self, sampler: SamplerName, points: int) -> _Doubles:
        """arXiv 2305.08891, table 2."""
        spacing, most = self._spacing[sampler], self.num_train_timesteps
        if spacing == "linspace":
            return np.linspace(0, most - 1, points)[::-1]
        if spacing == "leading":
            return np.arange(points, dtype=np.float64)[::-1] * (most // points) + self._offset
        return np.arange(most, 0, -most / points).round()[:points] - 1  # for some numbers it has one too many

    def _karras(self, steps: int, first: float, last: float) -> _Doubles:
        first, last = (given or found for given, found in zip(self._ends, (first, last), strict=True))
        low, high = last ** (1 / KARRAS_RHO), first ** (1 / KARRAS_RHO)
        sigmas: _Doubles = (high + np.linspace(0, 1, steps) * (low - high)) ** KARRAS_RHO
        return sigmas

    def _running_products(self, table: ConfigTable, known: _Class) -> Floats:
        betas = self._betas(table, known)
        products = _product(1 - betas)
        if not (self._has_zero_snr and known.knows_zero_snr):
            return products
        # Moved so that the last is 0, stretched so that the first stays. arXiv 2305.08891, algorithm 1.
        roots = np.sqrt(products)
        first, last = roots[0], roots[-1]
        roots = (roots - last) * (first / (first - last))
        moved = roots * roots
        betas = 1 - np.append(moved[:1], moved[1:] / moved[:-1]).astype(np.float32)
        return _product(1 - betas)

    def _betas(self, table: ConfigTable, known: _Class) -> Floats:
        most = self.num_train_timesteps
        if "trained_betas" in table:
            betas = table.get("trained_betas")
            is_list = isinstance(betas, list) and len(betas) == most
            if not is_list or not all(isinstance(beta, float) and 0 < beta < 1 for beta in betas):
                raise table.wrong("trained_betas", betas, f"{most} numbers between 0 and 1")
            return np.array(betas, dtype=np.float32)
        schedule = table.one_of("beta_schedule", ("linear", "scaled_linear", "squaredcos_cap_v2"), "linear")
        if schedule == "squaredcos_cap_v2":
            bars = [math.cos((step / most + 0.008) / 1.008 * math.pi / 2) ** 2 for step in range(most + 1)]
            return np.array([min(1 - after / before, 0.999) for before, after in pairwise(bars)], dtype=np.float32)
        first, last = table.number("beta_start", known.first_beta), table.number("beta_end", known.last_beta)
        if not 0 < first < 1:
            raise table.wrong("beta_start", first, "between 0 and 1")
        if not first <= last < 1:
            raise table.wrong("beta_end", last, f"from beta_start = {first} to below 1")
        if schedule == "linear":
            return np.linspace(first, last, most, dtype=np.float32)
        roots = np.linspace(first**0.5, last**0.5, most, dtype=np.float32)
        return roots * roots


def _product(alphas: Floats) -> Floats:
    return np.cumprod(alphas, dtype=np.float64).astype(np.float32)


def _timesteps_of(sigmas: _Doubles, trained: Floats) -> _Doubles:
    """Where training had these sigmas, between its timesteps along the logarithm."""
    known, wanted = np.log(trained), np.log(np.maximum(sigmas, 1e-10))
    below = np.clip(np.searchsorted(known, wanted.astype(np.float32), side="right") - 1, 0, len(known) - 2)
    share = np.clip((known[below] - wanted) / (known[below] - known[below + 1]), 0, 1)
    timesteps: _Doubles = (1 - share) * below + share * (below + 1)
    return timesteps
