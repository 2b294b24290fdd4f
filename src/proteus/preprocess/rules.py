"""What decides the pixels of a deployment's pictures, for the keys of caches."""

from __future__ import annotations

import json
import os
import subprocess
from functools import lru_cache

from proteus.cache.key import PixelRules
from proteus.errors import Unavailable
from proteus.families.llava import ResizeRule
from proteus.limits import ImageLimits
from proteus.preprocess.pool import ENVIRONMENT, START_S, interpreter


def pixel_rules(limits: ImageLimits, resize: ResizeRule) -> PixelRules:
    """Raises Unavailable when the decoders cannot be asked for their versions."""
    policy, decoders = _installed()
    return PixelRules(
        policy=policy,
        decoders=decoders,
        background_rgb=limits.background_rgb,
        animation=limits.animation,
        resize=resize,
    )


@lru_cache(maxsize=1)
def _installed() -> tuple[str, str]:
    command = [interpreter(), "-P", "-m", "proteus.preprocess.versions"]
    try:
        done = subprocess.run(
            command,
            cwd="/",
            env={**os.environ, **ENVIRONMENT},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=START_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise Unavailable("a process that decodes pictures did not start", fix="read the log above") from error
    told = json.loads(done.stdout)
    return told["policy"], told["decoders"]
