"""The steps of one run: where the denoiser is asked, and how much signal and noise the latent holds before and after.

N steps. A latent is signal · clean + noise · normal noise, in the sampler's own scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from proteus.limits import SamplerName
from proteus.manifest import Prediction


class Level(NamedTuple):
    signal: float
    noise: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grid:
    """What a run needs to know of the checkpoint's schedule; the same for every picture of these settings."""

    sampler: SamplerName  # `ddim` of a flow model is `euler`
    prediction: Prediction
    timesteps: tuple[float, ...]  # (N,) in the denoiser's units
    before: tuple[Level, ...]  # (N,) of each step
    after: tuple[Level, ...]  # (N,)
    input_scales: tuple[float, ...]  # (N,) latent · scale is what the denoiser is given
    initial_scale: float  # noise · scale is the first latent
    clip: float | None = None  # DDIM: the estimate of the clean latent is held within ± it

    @property
    def steps(self) -> int:
        return len(self.timesteps)
