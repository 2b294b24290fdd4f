"""Which libraries turn bytes into pixels here, and by which policy: `python -m proteus.preprocess.versions`.

A program of its own, so that the processes which want to know need not load the decoders.
"""

from __future__ import annotations

import json
import sys

import numpy as np
import pillow_heif
from PIL import features

from proteus.preprocess.pixels import POLICY

LIBRARIES = ("pil", "jpg", "libjpeg_turbo", "zlib", "zlib_ng", "libtiff", "webp", "avif", "littlecms2")


def decoders() -> str:
    """Every library with its version, in one line."""
    versions: dict[str, object] = {name: features.version(name) for name in LIBRARIES}
    heif = pillow_heif.libheif_info()
    versions |= {
        "pillow_heif": pillow_heif.__version__,
        "libheif": heif["libheif"],
        **heif["decoders"],
        "numpy": np.__version__,
    }
    return ", ".join(f"{name} {version}" for name, version in versions.items() if version)


if __name__ == "__main__":
    json.dump({"policy": POLICY, "decoders": decoders()}, sys.stdout)
