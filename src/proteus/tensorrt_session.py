"""An engine of TensorRT that is run in this process, on one GPU and one stream of its own.

Shapes are bound once: each binding has its profile, its context and, from its second call on, its CUDA graph. All of
them share one working memory, so one thread runs one at a time. TensorRT is imported when an engine is opened.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from proteus.cuda_device import CudaDevice, CudaGraph, Memory
from proteus.deployment import DeploymentError
from proteus.engines import ENGINE_FILE, EXPORT_AGAIN, Engine

Array = NDArray[Any]
Shape = tuple[int, ...]
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The shapes that one profile takes, by input."""

    least: Mapping[str, Shape]
    most: Mapping[str, Shape]

    @property
    def size(self) -> int:
        """Elements of the largest inputs."""
        return sum(int(np.prod(shape)) for shape in self.most.values())

    def takes(self, shapes: Mapping[str, Shape]) -> bool:
        return all(
            len(shape) == len(self.least[name])
            and all(low <= dim <= high for low, dim, high in zip(self.least[name], shape, self.most[name], strict=True))
            for name, shape in shapes.items()
        )


class TensorRtSession:
    """Not thread-safe. `inputs` and `outputs` give the numpy type of each tensor."""

    def __init__(self, path: Path, device: int = 0) -> None:
        """Raises DeploymentError."""
        self._path, self._trt = path, _import_tensorrt(path)
        self.cuda = CudaDevice(device)
        _check_build(path, self._trt.__version__, self.cuda.sm)
        self._logger = _logger(self._trt)
        self._runtime = self._trt.Runtime(self._logger)  # lives as long as its engine
        self._engine = self._load()
        names = [self._engine.get_tensor_name(number) for number in range(self._engine.num_io_tensors)]
        types = {name: np.dtype(self._trt.nptype(self._engine.get_tensor_dtype(name))) for name in names}
        is_input = {name: self._engine.get_tensor_mode(name) == self._trt.TensorIOMode.INPUT for name in names}
        self.inputs = {name: types[name] for name in names if is_input[name]}
        self.outputs = {name: types[name] for name in names if not is_input[name]}
        self.profiles = tuple(self._span(number) for number in range(self._engine.num_optimization_profiles))
        self._working = self.cuda.allocate(self._engine.device_memory_size_v2)
        self._memory = self._allocate()

    def pinned(self, *shape: int) -> Array:
        """Zeros of the host, float32, that are copied from and to without waiting."""
        return self.cuda.pinned(shape)

    def bind(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> Callable[[], None]:
        """A call that reads `inputs` and writes `outputs`, whatever is in them by then; raises DeploymentError."""
        self._check_arrays(inputs, self.inputs)
        self._check_arrays(outputs, self.outputs)
        self.cuda.use()
        context = self._context(self._choose({name: array.shape for name, array in inputs.items()}))
        for name, array in inputs.items():
            self._must(context.set_input_shape(name, array.shape), f"the shape of {name}")
        for name in (*inputs, *outputs):
            self._must(context.set_tensor_address(name, self._memory[name].address), f"the memory of {name}")
        self._must(not context.infer_shapes(), "the shapes")
        for name, array in outputs.items():
            shape = tuple(context.get_tensor_shape(name))
            self._must(shape == array.shape, f"{name} of {shape} in an array of {array.shape}")
        return _Call(self.cuda, context, self._memory, inputs, outputs)

    def _choose(self, shapes: Mapping[str, Shape]) -> int:
        """The smallest profile that takes them; raises DeploymentError."""
        taking = [number for number, span in enumerate(self.profiles) if span.takes(shapes)]
        if not taking:
            asked = ", ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in shapes.items())
            raise DeploymentError(
                f"{self._path} has no profile for {asked}",
                limit=f"{len(self.profiles)} profiles, made for the sizes and rows of the deployment file",
                fix=f"build it for the deployment file as it is now: {EXPORT_AGAIN}",
            )
        return min(taking, key=lambda number: self.profiles[number].size)

    def _context(self, profile: int) -> Any:
        """One of its own for every binding: to change a context spoils the graphs that were captured from it."""
        context = self._engine.create_execution_context(self._trt.ExecutionContextAllocationStrategy.USER_MANAGED)
        self._must(context is not None, "another context")
        self._must(context.set_optimization_profile_async(profile, self.cuda.stream), f"profile {profile}")
        self.cuda.synchronize()
        context.set_device_memory(self._working.address, self._working.num_bytes)
        return context

    def _span(self, profile: int) -> Span:
        shapes = {name: self._engine.get_tensor_profile_shape(name, profile) for name in self.inputs}
        return Span(
            least={name: tuple(least) for name, (least, _, _) in shapes.items()},
            most={name: tuple(most) for name, (_, _, most) in shapes.items()},
        )

    def _allocate(self) -> dict[str, Memory]:
        """Of every tensor, as much as any profile needs."""
        num_bytes = dict.fromkeys((*self.inputs, *self.outputs), 0)
        for number, span in enumerate(self.profiles):
            context = self._context(number)
            for name, shape in span.most.items():
                self._must(context.set_input_shape(name, shape), f"the shape of {name}")
            self._must(not context.infer_shapes(), "the shapes")
            for name, dtype in {**self.inputs, **self.outputs}.items():
                size = int(np.prod(tuple(context.get_tensor_shape(name)), dtype=np.int64)) * dtype.itemsize
                num_bytes[name] = max(num_bytes[name], size)
        return {name: self.cuda.allocate(size) for name, size in num_bytes.items()}

    def _check_arrays(self, arrays: Mapping[str, Array], types: Mapping[str, np.dtype[Any]]) -> None:
        if set(arrays) != set(types):
            raise ValueError(f"{sorted(arrays)} given, the engine has {sorted(types)}")
        for name, array in arrays.items():
            if array.dtype != types[name] or not array.flags.c_contiguous:
                raise ValueError(f"{name} is {array.dtype}, the engine has {types[name]}, in one piece")

    def _must(self, done: bool, what: str) -> None:
        if not done:
            raise RuntimeError(f"TensorRT refused {what}: {self._logger.last or 'without a word'}")

    def _load(self) -> Any:
        try:
            plan = self._path.read_bytes()
        except OSError as error:
            raise DeploymentError(f"{self._path} cannot be read ({error.strerror})", fix=EXPORT_AGAIN) from error
        engine = self._runtime.deserialize_cuda_engine(plan)
        if engine is None:
            raise DeploymentError(
                f"{self._path} does not load: {self._logger.last or 'TensorRT says no more'}",
                limit=f"an engine built by TensorRT {self._trt.__version__} for compute capability {self.cuda.sm / 10}",
                fix=f"build it here: {EXPORT_AGAIN}",
            )
        return engine


class _Call:
    """One binding. TensorRT settles a context in its first run, so its graph is captured before the second."""

    def __init__(
        self,
        cuda: CudaDevice,
        context: Any,
        memory: Mapping[str, Memory],
        inputs: Mapping[str, Array],
        outputs: Mapping[str, Array],
    ) -> None:
        self._cuda, self._context, self._memory = cuda, context, memory
        self._inputs, self._outputs = inputs, outputs
        self._graph: CudaGraph | None = None
        self._runs = 0

    def __call__(self) -> None:
        self._cuda.use()
        if self._runs == 1:
            self._graph = self._cuda.capture(self._begin)
            if self._graph is None:
                log.info("no CUDA graph can be made of a call: it is put together again every time")
        self._runs += 1
        if self._graph is None:
            self._begin()
        else:
            self._cuda.launch(self._graph)
        self._cuda.synchronize()

    def _begin(self) -> None:
        for name, array in self._inputs.items():
            self._cuda.copy_in(self._memory[name], array)
        if not self._context.execute_async_v3(self._cuda.stream):
            raise RuntimeError("TensorRT did not run the engine")
        for name, array in self._outputs.items():
            self._cuda.copy_out(array, self._memory[name])


def _import_tensorrt(path: Path) -> Any:
    try:
        return import_module("tensorrt")
    except ImportError as error:
        raise DeploymentError(
            f"{path} is to run on TensorRT, which is not installed",
            fix='use the container image of docs/gpu.md, or choose runtime = "torch" or "onnxruntime"',
        ) from error


def _check_build(path: Path, version: str, sm: int) -> None:
    """What was written beside the engine names this TensorRT and this GPU; raises DeploymentError."""
    engine = Engine.load(path.with_name(ENGINE_FILE))
    if (engine.tensorrt_version, engine.sm) != (version, sm):
        raise DeploymentError(
            f"{path} was built by TensorRT {engine.tensorrt_version} for compute capability {engine.sm / 10}",
            limit=f"TensorRT {version} and compute capability {sm / 10}, which are here",
            fix=f"build it here: {EXPORT_AGAIN}; or take a build that is kept: proteus engines",
        )


def _logger(trt: Any) -> Any:
    """What goes wrong, for the log and for our own errors."""
    bad = (trt.ILogger.Severity.INTERNAL_ERROR, trt.ILogger.Severity.ERROR)

    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.last = ""

        def log(self, severity: Any, message: str) -> None:
            if severity in bad:
                self.last = message
                log.error("TensorRT: %s", message)

    return Logger()
