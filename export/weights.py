"""A checkpoint's weights for TensorRT-LLM, which reads them itself: beside the texts of a deployment folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from proteus.deployment import Deployment
from proteus.engines import replacing

PATTERNS = ("*.safetensors", "*.safetensors.index.json")


def bring_weights(folder: Path, deployment: Deployment) -> list[Path]:
    """Link or, on another disk, copy the weights of the checkpoint `folder` to the folder that the deployment serves;
    returns what is there new. Nothing where no engine reads them, or where both folders are one.

    A link costs no room; a file that is replaced in `folder` later stays as it was here.
    """
    gpu, place = deployment.gpu, deployment.checkpoint_path
    if gpu is None or gpu.llm.runtime != "tensorrt_llm" or place == folder.resolve():
        return []
    files = [file for pattern in PATTERNS for file in sorted(folder.glob(pattern))]
    brought = [_brought(file.resolve(), place / file.name) for file in files]
    for old in (old for pattern in PATTERNS for old in place.glob(pattern)):
        if old not in brought:
            old.unlink()  # of an earlier export, with more parts
    return brought


def _brought(source: Path, target: Path) -> Path:
    """`source` is no link itself: a hub's cache keeps links to files elsewhere."""
    with replacing(target) as path:
        try:
            os.link(source, path)
        except OSError:
            shutil.copyfile(source, path)
    return target
