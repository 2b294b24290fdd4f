"""The TensorRT and the GPU of this machine, for whoever builds engines; each thing that is missing, with its fix."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proteus.contract_draw import DENOISER
from proteus.cuda_device import CudaDevice
from proteus.cuda_driver import compute_capability
from proteus.deployment import DeploymentError
from proteus.engines import EngineStage
from proteus.limits_gpu import Gpu
from proteus.profiles import Shape
from proteus.tensorrt_session import TensorRtSession

IMAGE = "nvcr.io/nvidia/tritonserver:26.10-trtllm-python-py3"
OLDEST = 10  # major version: the first whose networks are as they are built here
WITHOUT_GPU = "make check-tensorrt tells without a GPU whether the graphs can be built"

Tensors = Mapping[str, NDArray[np.generic]]
# Inputs, and the shape of each output, to outputs.
Runner = Callable[[Tensors, Mapping[str, Shape]], dict[str, NDArray[np.generic]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Where engines are built and tried."""

    trt: Any  # the module
    sm: int  # compute capability x 10
    sms: tuple[int, ...] = ()  # see export.tensorrt_plan.Settings
    use: Callable[[], None] = lambda: None  # CUDA's device from now on: TensorRT builds for that one
    open: Callable[[Path], Runner] | None = None  # runs a plan; None: nothing here can

    @classmethod
    def here(cls, path: Path, devices: Sequence[int]) -> Host:
        """`path` names the deployment file that has the devices; raises DeploymentError where they are not all there,
        or of several kinds.
        """
        found = {device: _capability(device) for device in devices}
        if len(set(found.values())) > 1:
            told = ", ".join(f"{device} has {sm / 10}" for device, sm in found.items())
            raise DeploymentError(
                f"{path}: gpu.devices are of several compute capabilities: {told}",
                limit="one engine runs on one",
                fix="name devices of one kind, and serve the others from a deployment file of their own",
            )
        first = devices[0]
        return cls(
            trt=tensorrt_here(),
            sm=found[first],
            use=partial(use_device, first),
            open=partial(open_plan, device=first),
        )


def hosts_here(path: Path, gpu: Gpu, stages: Iterable[EngineStage]) -> dict[EngineStage, Host]:
    """What each stage is built on: the denoiser has a device of its own, which may be of another kind. Raises as
    `Host.here`.
    """
    own = {} if gpu.denoiser is None else {DENOISER.name: [gpu.denoiser.device]}
    return {stage: Host.here(path, own.get(stage, gpu.devices)) for stage in stages}


def tensorrt_here() -> Any:
    """The module; raises DeploymentError where it is missing or too old, or there is no GPU at all."""
    try:
        trt = importlib.import_module("tensorrt")
    except ImportError as error:
        raise DeploymentError(
            f"TensorRT is not installed here ({' '.join(str(error).split())[:120]})",
            fix=f"run this in {IMAGE}, or install the wheel tensorrt-cu13 on the GPU host; {WITHOUT_GPU}",
        ) from error
    if int(trt.__version__.split(".")[0]) < OLDEST:
        raise DeploymentError(
            f"TensorRT here is {trt.__version__}", limit=f"{OLDEST}.0 and later", fix=f"run this in {IMAGE}"
        )
    _capability(0)
    return trt


def _capability(device: int) -> int:
    sm = compute_capability(device)
    if sm is None:
        raise DeploymentError(
            f"no GPU {device} is here, and TensorRT builds engines on the kind of GPU that runs them",
            fix=f"run this on the GPU host, in {IMAGE} with docker's --gpus all; {WITHOUT_GPU}",
        )
    return sm


def use_device(device: int) -> None:
    """Of this thread."""
    CudaDevice(device).use()


def open_plan(plan: Path, device: int) -> Runner:
    """Runs a plan, its `engine.json` beside it, with the numbers in and out on the host; raises DeploymentError."""
    session = TensorRtSession(plan, device)

    def run(inputs: Tensors, shapes: Mapping[str, Shape]) -> dict[str, NDArray[np.generic]]:
        outputs = {name: np.zeros(shapes[name], dtype) for name, dtype in session.outputs.items()}
        session.bind({name: np.ascontiguousarray(array) for name, array in inputs.items()}, outputs)()
        return outputs

    return run
