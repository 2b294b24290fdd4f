"""The whole way from bytes to `pixel_values`, set up once from a deployment; for use in a worker."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from proteus.deployment import Deployment
from proteus.families.llava import LlavaFamily, ResizeRule
from proteus.limits import ImageLimits
from proteus.preprocess.decode import decode
from proteus.preprocess.pixels import to_pixel_values


@dataclass(frozen=True, slots=True)
class Preprocess:
    limits: ImageLimits
    rule: ResizeRule

    @classmethod
    def from_deployment(cls, deployment: Deployment) -> Preprocess:
        """Raises UnsupportedCheckpoint when the checkpoint's image processor is not one we match."""
        return cls(deployment.image, LlavaFamily.from_checkpoint(deployment.checkpoint_path).resize)

    def __call__(self, data: bytes, target_px: tuple[int, int] | None = None) -> npt.NDArray[np.float32]:
        """Bytes of one picture -> (3, S, S); raises InvalidPicture, MediaTooLarge or MemoryError."""
        return to_pixel_values(decode(data, self.limits, target_px), self.rule)
