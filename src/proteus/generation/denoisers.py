"""Which runtime computes a denoiser's rows, and where: one protocol, and a table from the name of a runtime to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from proteus.deployment import DeploymentError
from proteus.generation.bucket import Size
from proteus.generation.onnx_denoiser import OnnxDenoiser
from proteus.generation.rows import Rows
from proteus.generation.task import Floats
from proteus.generation.tensorrt_denoiser import TensorRtDenoiser
from proteus.generation.torch_denoiser import TorchDenoiser
from proteus.limits import Denoiser as DenoiserLimits
from proteus.limits_gpu import Gpu, Precision
from proteus.manifest import DrawManifest


class Denoiser(Protocol):
    """Not thread-safe: one thread writes rows and runs them."""

    def rows(self, size: Size, num_rows: int) -> Rows:
        """The call to write, and then to run."""

    def run(self, rows: Rows) -> Floats:
        """Predictions (R, Z, h, w), valid until the next call of this size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What runs the denoiser, and where."""

    runtime: str = "onnxruntime"
    device: int | None = None  # GPU; None: the CPU
    precision: Precision = "fp32"

    @classmethod
    def of(cls, runtime: str, device: int | None, gpu: Gpu | None) -> Placement:
        """On the CPU, and where [gpu] says nothing of it, everything is fp32."""
        stage = None if gpu is None or device is None else gpu.denoiser
        return cls(runtime=runtime, device=device, precision="fp32" if stage is None else stage.precision)


ON_CPU = Placement()


def _onnx(folder: Path, manifest: DrawManifest, limits: DenoiserLimits, placement: Placement) -> Denoiser:
    """In fp32, whatever [gpu] says: it runs the exported graph as it is."""
    return OnnxDenoiser(
        folder / "denoiser.onnx", manifest, max_rows=limits.max_rows, threads=limits.threads, device=placement.device
    )


def _torch(folder: Path, manifest: DrawManifest, limits: DenoiserLimits, placement: Placement) -> Denoiser:
    return TorchDenoiser(
        folder / "denoiser.pt2",
        manifest,
        max_rows=limits.max_rows,
        threads=limits.threads,
        device=placement.device,
        precision=placement.precision,
    )


def _tensorrt(folder: Path, manifest: DrawManifest, limits: DenoiserLimits, placement: Placement) -> Denoiser:
    if placement.device is None:
        raise DeploymentError(
            'the denoiser has runtime = "tensorrt" and no GPU',
            fix="serve with --hardware gpu, or write the configs again: make configs",
        )
    return TensorRtDenoiser(folder / "denoiser.plan", manifest, max_rows=limits.max_rows, device=placement.device)


Opener = Callable[[Path, DrawManifest, DenoiserLimits, Placement], Denoiser]
RUNTIMES: Mapping[str, Opener] = {"onnxruntime": _onnx, "torch": _torch, "tensorrt": _tensorrt}


def open_denoiser(folder: Path, manifest: DrawManifest, limits: DenoiserLimits, placement: Placement) -> Denoiser:
    """`folder` holds what the runtime loads; raises DeploymentError."""
    if placement.runtime not in RUNTIMES:
        raise DeploymentError(
            f'runtime = "{placement.runtime}" of the denoiser',
            limit=f"one of {', '.join(RUNTIMES)}",
            fix="correct [gpu.denoiser], and write the configs again: make configs",
        )
    return RUNTIMES[placement.runtime](folder, manifest, limits, placement)
