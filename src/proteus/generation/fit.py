"""Whether a picture that is asked for fits the checkpoint: checked before anything is held for it. Pure.

T text tokens, E width of a text state, P width of the pooled text.
"""

from __future__ import annotations

import math

import numpy as np

from proteus.errors import InvalidRequest
from proteus.generation.bucket import Size
from proteus.generation.guidance import branches
from proteus.generation.task import Condition, DrawTask, Floats, Settings
from proteus.manifest import DrawManifest

MAX_STEPS = 1000
MAX_SEED = 2**63 - 1


class Fit:
    def __init__(self, manifest: DrawManifest) -> None:
        self._manifest = manifest
        self._multiple_px = manifest.vae_factor * manifest.size_multiple

    def check(self, task: DrawTask) -> None:
        """Raises InvalidRequest naming what does not fit."""
        self._check_settings(task.settings)
        self._check_condition("the prompt's", task.prompt)
        if branches(task.settings.guidance, self._manifest.embedded_guidance) == 2:
            if task.negative is None:
                raise InvalidRequest(
                    f"guidance = {task.settings.guidance:g} has no negative condition",
                    limit="none only with guidance = 1",
                    fix="encode the negative prompt, or an empty text",
                )
            self._check_condition("the negative prompt's", task.negative)

    def size_of(self, settings: Settings) -> Size:
        """In latents."""
        factor = self._manifest.vae_factor
        return settings.height_px // factor, settings.width_px // factor

    def _check_settings(self, settings: Settings) -> None:
        for name, value in (("width", settings.width_px), ("height", settings.height_px)):
            if value < 1 or value % self._multiple_px:
                raise InvalidRequest(
                    f"{name} = {value} px",
                    limit=f"a multiple of {self._multiple_px} px with this checkpoint",
                    fix="ask for another size",
                )
        whole_numbers = (
            ("steps", settings.steps, 1, MAX_STEPS),
            ("seed", settings.seed, 0, MAX_SEED),
            ("image_index", settings.image_index, 0, MAX_SEED),
            ("preview_every", settings.preview_every, 0, MAX_SEED),
        )
        for name, value, least, most in whole_numbers:
            if not least <= value <= most:
                raise InvalidRequest(f"{name} = {value}", limit=f"{least} to {most}", fix="give another number")
        if not math.isfinite(settings.guidance) or settings.guidance < 1:
            raise InvalidRequest(f"guidance = {settings.guidance}", limit="1 or more", fix="give 1 for no guidance")
        if not settings.max_previews_per_s > 0:
            raise InvalidRequest(f"max_previews_per_s = {settings.max_previews_per_s}", limit="above 0", fix="raise it")

    def _check_condition(self, whose: str, condition: Condition) -> None:
        manifest = self._manifest
        wanted: dict[str, tuple[Floats | None, tuple[int, ...]]] = {
            "text states": (condition.states, (manifest.text_tokens, manifest.text_width))
        }
        if manifest.pooled_width:
            wanted["pooled text"] = (condition.pooled, (manifest.pooled_width,))
        for name, (array, shape) in wanted.items():
            if array is None or array.shape != shape or array.dtype != np.float32:
                found = "missing" if array is None else f"{array.dtype} {list(array.shape)}"
                raise InvalidRequest(
                    f"{whose} {name}: {found}",
                    limit=f"float32 {list(shape)} with this checkpoint",
                    fix="give what the text encoder of the same export returns",
                )
            if not np.isfinite(array).all():
                raise InvalidRequest(
                    f"{whose} {name} are not finite", fix="give what the text encoder of the same export returns"
                )
