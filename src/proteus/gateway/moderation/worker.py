"""A process that decodes pictures which are to be blurred: `python -m proteus.gateway.moderation.worker DEPLOYMENT`.

It is confined as those that decode for the encoder are, and as little believed; it gives a few coarse pixels.
"""

from __future__ import annotations

import sys

import numpy as np
import numpy.typing as npt

from proteus.deployment import Deployment
from proteus.preprocess.decode import decode
from proteus.preprocess.wire import Size
from proteus.preprocess.worker import Decoding, serve


def coarsely(deployment: Deployment) -> Decoding:
    """Bytes of a picture and a size to (height, width, 3), 0 to 255."""

    def colours(data: bytes, target_px: Size | None) -> npt.NDArray[np.float32]:
        return decode(data, deployment.image, target_px).astype(np.float32)

    return colours


if __name__ == "__main__":
    serve(sys.argv[1], coarsely)
