"""The engines of the language model by the name of their runtime; which one a server has says its configuration."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from proteus.deployment import Deployment, DeploymentError
from proteus.language.engine import OnnxEngine
from proteus.language.figures import EngineFigures
from proteus.language.generation import Engine
from proteus.language.tensorrt_llm_engine import TensorRtLlmEngine
from proteus.language.tensorrt_llm_options import check_gpu_llm, visible_devices
from proteus.language.tensorrt_llm_versions import load_api
from proteus.language.tokenizer import load_tokenizer
from proteus.manifest import Manifest


class RunningEngine(Engine, Protocol):
    """What a server needs to know of an engine besides."""

    @property
    def num_in_flight(self) -> int: ...

    @property
    def num_iterations(self) -> int:
        """Grows as long as something is in flight."""
        ...

    @property
    def is_alive(self) -> bool: ...

    def figures(self) -> EngineFigures: ...

    def check(self) -> None:
        """Raises RuntimeError when its books do not add up."""


Opener = Callable[[Deployment, Path], RunningEngine]


def _open_onnx(deployment: Deployment, folder: Path) -> RunningEngine:
    return OnnxEngine(
        folder, load_tokenizer(deployment.checkpoint_path), deployment.llm, revision=_revision(deployment)
    )


def _open_tensorrt_llm(deployment: Deployment, folder: Path) -> RunningEngine:
    if deployment.gpu is None:
        raise DeploymentError("[gpu] is missing", fix="add [gpu] and [gpu.llm], or start without --hardware gpu")
    gpu = deployment.gpu.llm
    check_gpu_llm(gpu)
    # CUDA looks at it once, when TensorRT-LLM is imported; its workers inherit it.
    os.environ["CUDA_VISIBLE_DEVICES"] = visible_devices(gpu, os.environ.get("CUDA_VISIBLE_DEVICES"))
    return TensorRtLlmEngine(
        load_api(),
        folder,
        load_tokenizer(deployment.checkpoint_path),
        deployment.llm,
        gpu,
        checkpoint=deployment.checkpoint_path,
        revision=_revision(deployment),
    )


ENGINES: Mapping[str, Opener] = {"onnxruntime": _open_onnx, "tensorrt_llm": _open_tensorrt_llm}


def open_engine(runtime: str, deployment: Deployment, folder: Path) -> RunningEngine:
    """`folder` is the version folder of `llm`. Raises DeploymentError."""
    if (opener := ENGINES.get(runtime)) is None:
        raise DeploymentError(f"llm has no runtime {runtime!r}", limit=f"one of {', '.join(ENGINES)}", fix="name one")
    return opener(deployment, folder)


def _revision(deployment: Deployment) -> str:
    return Manifest.load(deployment.repository_path).revision
