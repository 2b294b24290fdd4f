"""From noise to a latent: Euler, DDIM, Heun and DPM-Solver++ 2M, as diffusers' schedulers of these names.

Z latent channels, h and w sides in latents. All that depends on the schedule alone is computed once in `Sampler`;
what one picture is at is in its `Trajectory`, and nowhere else.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from proteus.generation.grid import Grid, Level
from proteus.generation.task import Floats
from proteus.limits import SamplerName
from proteus.manifest import Prediction

FEW_STEPS = 15  # below it the last step of 2M is of first order, which is stabler


@dataclass(frozen=True, slots=True, kw_only=True)
class _Evaluation:
    """Scalars: clean = of_latent · latent + of_prediction · prediction, next latent = keep · latent + take · clean."""

    timestep: float
    input_scale: float
    of_latent: float
    of_prediction: float
    noise: float  # of the level where it is made
    stride: float  # noise after the step - noise before it
    keep: float
    take: float
    signal: float  # after the step
    further: float = 0.0  # 2M: times what the estimate moved since the step before


class Trajectory(ABC):
    """One picture between noise and latent. Arrays that it gave out are never written to again."""

    __slots__ = ("_at", "_clip", "_evaluations", "clean", "latent")

    def __init__(self, evaluations: tuple[_Evaluation, ...], latent: Floats, clip: float | None) -> None:
        self._evaluations, self._clip, self._at = evaluations, clip, 0
        self.latent = latent  # (Z, h, w); the picture's own once no evaluation is left
        self.clean: Floats = np.zeros_like(latent)  # (Z, h, w): estimated at the last evaluation; before it, the mean

    @property
    def evaluations_left(self) -> int:
        return len(self._evaluations) - self._at

    @property
    def step(self) -> int:
        """Whole steps done."""
        return self._at

    @property
    def timestep(self) -> float:
        """Of the next evaluation, in the denoiser's units."""
        return self._evaluations[self._at].timestep

    def model_input(self) -> Floats:
        """What the denoiser is given at the next evaluation, (Z, h, w)."""
        scale = self._evaluations[self._at].input_scale
        return self.latent if scale == 1 else self.latent * scale

    def advance(self, prediction: Floats) -> None:
        """Take the denoiser's answer to `model_input` at `timestep`, (Z, h, w)."""
        now = self._evaluations[self._at]
        clean = now.of_latent * self.latent + now.of_prediction * prediction
        latent = self._next(now, clean)
        if self._clip is not None:  # the noise goes on as it was seen with the estimate not clipped
            clipped = clean.clip(-self._clip, self._clip)
            latent, clean = latent + now.signal * (clipped - clean), clipped
        self.latent, self.clean = latent, clean
        self._at += 1

    @abstractmethod
    def _next(self, now: _Evaluation, clean: Floats) -> Floats:
        """The latent after this evaluation; `self.clean` is still that of the one before."""


class _Straight(Trajectory):
    """Euler and DDIM: the noise that is seen now is what is left of it after the step."""

    __slots__ = ()

    def _next(self, now: _Evaluation, clean: Floats) -> Floats:
        return now.keep * self.latent + now.take * clean


class _Heun(Trajectory):
    """A straight step, then the same step again along the mean of the directions at its two ends."""

    __slots__ = ("_direction", "_start")

    def __init__(self, evaluations: tuple[_Evaluation, ...], latent: Floats, clip: float | None) -> None:
        super().__init__(evaluations, latent, clip)
        self._start = self._direction = latent

    @property
    def step(self) -> int:
        return self._at // 2 + (self._at == len(self._evaluations))

    def _next(self, now: _Evaluation, clean: Floats) -> Floats:
        direction = (self.latent - clean) / now.noise
        if self._at % 2 == 0:
            self._start, self._direction = self.latent, direction
            return self._start + now.stride * direction
        return self._start + (0.5 * now.stride) * (self._direction + direction)


class _Multistep(Trajectory):
    """DPM-Solver++ 2M: a straight step, corrected by how the estimate moved since the one before."""

    __slots__ = ()

    def _next(self, now: _Evaluation, clean: Floats) -> Floats:
        latent = now.keep * self.latent + now.take * clean
        return latent + now.further * (clean - self.clean) if now.further else latent


_KINDS: Mapping[SamplerName, type[Trajectory]] = MappingProxyType(
    {"euler": _Straight, "ddim": _Straight, "heun": _Heun, "dpmpp_2m": _Multistep}
)
# Signal, noise and input scale of a latent to (of_latent, of_prediction).
_ESTIMATES: Mapping[Prediction, Callable[[float, float, float], tuple[float, float]]] = MappingProxyType(
    {
        "epsilon": lambda signal, noise, scale: (1 / signal, -noise / signal),
        "v_prediction": lambda signal, noise, scale: (signal * scale * scale, -noise * scale),
        "sample": lambda signal, noise, scale: (0.0, 1.0),
        "flow": lambda signal, noise, scale: (1.0, -noise),
    }
)


class Sampler:
    """A sampler on the grid of a run; starts any number of pictures."""

    def __init__(self, grid: Grid) -> None:
        self._kind, self._clip, self._initial_scale = _KINDS[grid.sampler], grid.clip, grid.initial_scale
        self._evaluations = tuple(
            _evaluation(grid, asked=asked, step=step)
            for step in range(grid.steps)
            for asked in ((step, step + 1) if grid.sampler == "heun" and step + 1 < grid.steps else (step,))
        )

    def start(self, noise: Floats) -> Trajectory:
        """A picture from standard normal noise (Z, h, w)."""
        return self._kind(self._evaluations, noise * self._initial_scale, self._clip)


def _evaluation(grid: Grid, *, asked: int, step: int) -> _Evaluation:
    """For `step`, the denoiser being asked at the level of step `asked`: its own, or for Heun also the next."""
    before, after, level = grid.before[step], grid.after[step], grid.before[asked]
    scale = grid.input_scales[asked]
    of_latent, of_prediction = _ESTIMATES[grid.prediction](level.signal, level.noise, scale)
    keep = after.noise / before.noise
    take = after.signal - before.signal * keep
    return _Evaluation(
        timestep=grid.timesteps[asked],
        input_scale=scale,
        of_latent=of_latent,
        of_prediction=of_prediction,
        noise=level.noise,
        stride=after.noise - before.noise,
        keep=keep,
        take=take,
        signal=after.signal,
        further=take * _further(grid, step) if grid.sampler == "dpmpp_2m" else 0.0,
    )


def _further(grid: Grid, step: int) -> float:
    """Half of the step in log signal-to-noise, over the step before it. arXiv 2211.01095, algorithm 2."""
    is_last = step == grid.steps - 1
    after = grid.after[step]
    if step == 0 or after.noise == 0 or (is_last and grid.steps < FEW_STEPS):
        return 0.0
    earlier, now, later = (_log_ratio(level) for level in (grid.before[step - 1], grid.before[step], after))
    return 0.5 * (later - now) / (now - earlier)


def _log_ratio(level: Level) -> float:
    return math.log(level.signal) - math.log(level.noise)
