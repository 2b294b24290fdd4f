"""A server on GPUs: its options of tritonserver, and what is looked at before it starts. Its models are configured by
`<model>/configs/gpu.pbtxt`.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from proteus import cuda_driver
from proteus.launcher.failure import LaunchFailed
from proteus.launcher.installation import Installation

if TYPE_CHECKING:
    from proteus.deployment import Deployment
    from proteus.limits_gpu import Gpu

CONFIG_NAME = "gpu"
TENSORRT = "tensorrt"
# An execution ends when its own instance is free again. By default it ends when any is: the rate limiter would count
# none of those that run while a stage has one more instance.
BLOCKING = f"--backend-config={TENSORRT},execution-policy=BLOCKING"
IMPORT_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuHost:
    """What a deployment file says of its GPU host, for the models that one server has."""

    deployment: Deployment
    gpu: Gpu
    models: tuple[str, ...]

    @staticmethod
    def of(deployment: Deployment, models: tuple[str, ...]) -> GpuHost:
        """Raises LaunchFailed where the file says nothing of a GPU host."""
        if deployment.gpu is None:
            raise LaunchFailed(
                f"{deployment.path} has no [gpu]",
                fix="add the table, as in deployments/demo.toml, and run python -m proteus.configs on the file",
            )
        return GpuHost(deployment=deployment, gpu=deployment.gpu, models=models)

    def arguments(self) -> list[str]:
        """Of tritonserver's command line. The rate limiter is on only where something is limited."""
        limited = [name for name in self.gpu.stages() if name in self.models]
        resources = [
            f"--rate-limit-resource={name}:{count}:{device}"
            for device in self.gpu.devices
            for name, count in self.gpu.resources().items()
        ]
        return [
            f"--model-config-name={CONFIG_NAME}",
            f"--pinned-memory-pool-byte-size={self.gpu.pinned_memory_bytes}",
            "--allow-gpu-metrics=true",
            *(["--rate-limit=execution_count", *resources] if limited else []),
            *([BLOCKING] if set(limited) & set(self._on_tensorrt()) else []),
        ]

    def check(self, installation: Installation) -> list[str]:
        """Raises LaunchFailed with everything that keeps the models from loading; what could not be looked at."""
        capabilities = cuda_driver.compute_capabilities()
        if not capabilities:
            raise LaunchFailed(
                "no GPU is there, or no driver (libcuda.so.1)",
                fix="give the container its GPUs (docker run --gpus all), or serve with --hardware cpu",
            )
        from proteus.profiles import other_profiles

        faults = list(self._missing(installation, len(capabilities)))
        notes = []
        if engines := self._on_tensorrt():
            version = self._tensorrt_version()
            if version is None:
                notes.append("TensorRT cannot be imported here, so no engine was looked at before the start")
            else:
                faults += self._engine_faults(version, engines, capabilities)
                faults += other_profiles(self.deployment, engines)
        if faults:
            raise LaunchFailed("\n  ".join(["the models cannot be served here", *faults]), fix="mend these first")
        return notes

    def devices(self) -> tuple[int, ...]:
        """Every GPU that a model of this server runs on."""
        used = set(self.gpu.devices) if any(name in self.models for name in self.gpu.stages()) else set()
        if "llm" in self.models:
            used |= set(range(self.gpu.llm.device, self.gpu.llm.device + self.gpu.llm.tensor_parallel))
        if "denoiser" in self.models and self.gpu.denoiser is not None:
            used.add(self.gpu.denoiser.device)
        return tuple(sorted(used))

    def _missing(self, installation: Installation, num_devices: int) -> Iterator[str]:
        for device in self.devices():
            if device >= num_devices:
                yield f"GPU {device} is not there: {num_devices} are; correct [gpu] devices, or device of its tables"
        native = installation.native()
        served = {name: stage for name, stage in self.gpu.stages().items() if name in self.models}
        stages = [name for name, stage in served.items() if stage.runtime == TENSORRT]
        if stages and TENSORRT not in native:
            where = installation.backends or "the embedded tritonserver"
            yield (
                f"no native backend {TENSORRT} in {where}, which {', '.join(stages)} need: use a tritonserver that has "
                "it (--tritonserver), or another runtime for [gpu] tables of these"
            )

    def _engine_faults(
        self, version: str, engines: Mapping[str, Sequence[int]], capabilities: Sequence[int]
    ) -> list[str]:
        """An engine is for the GPUs that it runs on; those of other models may be of another kind."""
        from proteus.engines import check_installed

        models_on: dict[int, list[str]] = {}
        for model, devices in engines.items():
            for sm in {capabilities[device] for device in devices if device < len(capabilities)}:
                models_on.setdefault(sm, []).append(model)
        return [
            fault
            for sm, models in sorted(models_on.items())
            for fault in check_installed(self.deployment, version, sm, models)
        ]

    def _on_tensorrt(self) -> dict[str, list[int]]:
        """The models here that TensorRT runs, and on which devices."""
        found = {name: self.gpu.devices for name, stage in self.gpu.stages().items() if stage.runtime == TENSORRT}
        if self.gpu.denoiser is not None and self.gpu.denoiser.runtime == TENSORRT:
            found["denoiser"] = [self.gpu.denoiser.device]
        return {name: devices for name, devices in found.items() if name in self.models}

    def _tensorrt_version(self) -> str | None:
        """Asked in a process of its own: its libraries are large, and the launcher needs none of them."""
        program = "import tensorrt; print(tensorrt.__version__)"
        try:
            done = subprocess.run(
                [sys.executable, "-c", program], capture_output=True, text=True, timeout=IMPORT_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return None
        return done.stdout.strip() or None if done.returncode == 0 else None
