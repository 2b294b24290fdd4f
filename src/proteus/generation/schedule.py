"""The noise schedule of a checkpoint, from its scheduler_config.json: which timesteps and levels a run has.

What a config says is taken as diffusers' class of each sampler takes it: a key that is absent has that class's
default. Keys that choose a sampler (`_class_name`, `solver_order`, …) say nothing here: the request chooses.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal, Self

from proteus.errors import InvalidRequest
from proteus.families.checkpoint import ConfigTable
from proteus.generation.flow_schedule import FLOW_CLASSES, FlowSchedule
from proteus.generation.grid import Grid
from proteus.generation.vp_schedule import VP_CLASSES, VpSchedule
from proteus.limits import SamplerName
from proteus.manifest import DrawManifest, Prediction

Family = Literal["unet", "sd3", "flux"]
MAX_KEPT_GRIDS = 64


class NoiseSchedule:
    """Hands out grids; those asked for last are kept, and are the same objects when they are asked for again."""

    def __init__(self, kind: VpSchedule | FlowSchedule) -> None:
        self._kind = kind
        self._kept = lru_cache(MAX_KEPT_GRIDS)(self._grid)

    @classmethod
    def from_config(cls, scheduler: Mapping[str, Any], prediction: Prediction, family: Family) -> Self:
        """Raises UnsupportedCheckpoint naming key and value, also of what diffusers does and we do not."""
        table = ConfigTable("scheduler_config.json", _as_in_pipeline(scheduler, family))
        classes = FLOW_CLASSES if prediction == "flow" else VP_CLASSES
        table.one_of("_class_name", classes, classes[0])
        if prediction == "flow":
            return cls(FlowSchedule(table, spaced_by_pipeline=family == "flux"))
        return cls(VpSchedule(table, prediction))

    @classmethod
    def of(cls, manifest: DrawManifest) -> Self:
        """As `from_config`."""
        return cls.from_config(manifest.scheduler, manifest.prediction, manifest.family)

    def grid(self, steps: int, sampler: SamplerName, latent_tokens: int | None = None) -> Grid:
        """The run of so many steps; raises InvalidRequest where the schedule has no room for them.

        `latent_tokens` are those of the picture in the transformer: a flow schedule may be shifted by them.
        """
        return self._kept(steps, sampler, latent_tokens)

    def _grid(self, steps: int, sampler: SamplerName, latent_tokens: int | None) -> Grid:
        most = self._kind.num_train_timesteps
        if not 1 <= steps <= most:
            raise InvalidRequest(f"steps = {steps}", limit=f"1 to {most}", fix="ask for as many as the limit allows")
        grid = self._kind.grid(steps, sampler, latent_tokens)
        if any(later.noise >= now.noise for now, later in pairwise(grid.before)):
            raise InvalidRequest(
                f"steps = {steps}", limit="timesteps that the checkpoint's schedule can tell apart", fix="ask for fewer"
            )
        return grid


def _as_in_pipeline(scheduler: Mapping[str, Any], family: Family) -> Mapping[str, Any]:
    """StableDiffusionPipeline corrects two keys of old configs when it is loaded; absent ones it leaves."""
    corrected = {"steps_offset": 1, "clip_sample": False} if family == "unet" else {}
    return {**scheduler, **{key: value for key, value in corrected.items() if key in scheduler}}
