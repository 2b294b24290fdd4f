"""What goes into the denoiser's loop and what comes out of it: text states and settings in, latents out.

T text tokens, E width of a text state, P width of the pooled text (0 where the model has none), Z latent channels,
h and w sides in latents. Latents are the denoiser's own: scaled, as diffusers' pipelines return them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from proteus.errors import ProteusError
from proteus.limits import LatencyClass, SamplerName

Floats = npt.NDArray[np.float32]
DrawFinish = Literal["done", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One branch's text, as the text encoder gave it."""

    states: Floats  # (T, E)
    pooled: Floats | None = None  # (P,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How one picture is drawn. Checked by the door, and again by the loop against its checkpoint."""

    width_px: int
    height_px: int
    steps: int
    guidance: float  # 1.0: one branch
    sampler: SamplerName
    seed: int  # 0 … 2**63 - 1
    image_index: int = 0  # with the seed, names the noise
    preview_every: int = 0  # steps between two previews; 0: none
    max_previews_per_s: float = 4.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DrawTask:
    """One picture to draw; a request for n pictures is n of these."""

    request_key: bytes  # names the picture for `cancel`; unique among those in flight
    prompt: Condition
    negative: Condition | None  # the other guidance branch; None with guidance 1
    settings: Settings
    tenant: str = ""
    latency_class: LatencyClass = "media"
    deadline_s: float | None = None  # to begin, on the monotonic clock


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawEnd:
    """The account of one picture."""

    reason: DrawFinish
    queue_us: int  # submitted → first row in a batch
    denoise_us: int  # → last row
    evaluations: int  # rows computed for it: NFE
    branches: int
    accelerator_us: int  # its share, by rows, of the time of the calls it was in


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DrawEvent:
    """A step done, told at previews and at the end only."""

    step: int  # steps done
    steps: int
    clean: Floats | None  # (Z, h, w): the estimate of the clean latent; at the end, the latent. None once cancelled
    end: DrawEnd | None = None  # of the last event


@dataclass(frozen=True, slots=True)
class DrawFailure:
    """The last event of a picture that did not get done."""

    error: ProteusError


DrawEmit = Callable[[DrawEvent | DrawFailure], None]


class DrawEngine(Protocol):
    def submit(self, task: DrawTask, emit: DrawEmit) -> None:
        """Queue the picture. Raises QueueFull, InvalidRequest or Unavailable before anything is held.

        `emit` is called from the engine's thread and must not block; after an event with `end`, or a failure, it is not
        called again. An `emit` that raises cancels its own picture.
        """

    def cancel(self, request_key: bytes) -> None:
        """Stop before the next step. An unknown key is remembered, for a stop can overtake its picture."""

    def close(self) -> None:
        """End the loop; what is in flight fails with Unavailable."""
