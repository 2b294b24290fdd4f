"""TensorRT as its documentation tells of it, over ONNX Runtime and memory of the host (tests/fake_cuda.py).

Strict where the real one is, or does not tell: what it refuses is refused; a graph of a context that was changed after
it was captured is an error here.
"""

from __future__ import annotations

import ctypes
import json
import sys
import types
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from proteus.engines import ENGINE_FILE, FORMAT, Engine
from tests.fake_cuda import ALIGNED, OK, SM, FakeCuda

VERSION = "11.4.0.1"
MAGIC = b"fake plan\n"
WORKING_BYTES = 4096
Shape = tuple[int, ...]
Profile = dict[str, tuple[Shape, Shape, Shape]]  # least, best, most of each input
TYPES = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(uint8)": np.uint8}


def write_plan(plan: Path, onnx: Path, profiles: list[Profile], *, version: str = VERSION, sm: int = SM) -> Path:
    """What a builder would write: the plan, and engine.json beside it."""
    head = json.dumps({"onnx": str(onnx), "profiles": profiles, "version": version}).encode()
    plan.write_bytes(MAGIC + head)
    write_engine(plan, version=version, sm=sm)
    return plan


def write_engine(plan: Path, *, version: str, sm: int) -> None:
    """engine.json beside a plan."""
    facts: dict[str, Any] = {
        "format": FORMAT,
        "stage": "denoiser",
        "tensorrt_version": version,
        "sm": sm,
        "precision": "fp32",
        "profiles": [],
        "onnx_sha256": "0" * 64,
        "plan_sha256": "0" * 64,
        "plan_bytes": 1,
        "built_at": "2026-01-01T00:00:00Z",
        "build_s": 1.0,
        "optimization_level": 3,
        "workspace_bytes": 1,
    }
    plan.with_name(ENGINE_FILE).write_text(Engine.model_validate(facts).model_dump_json())


class Severity(IntEnum):
    INTERNAL_ERROR = 0
    ERROR = 1
    WARNING = 2


class ILogger:
    Severity = Severity

    def __init__(self) -> None:
        self.is_made = True

    def log(self, severity: Severity, msg: str) -> None:
        raise AssertionError("a logger overrides it")


class TensorIOMode(IntEnum):
    NONE = 0
    INPUT = 1
    OUTPUT = 2


class ExecutionContextAllocationStrategy(IntEnum):
    STATIC = 0
    USER_MANAGED = 2


class IExecutionContext:
    def __init__(self, engine: ICudaEngine, strategy: ExecutionContextAllocationStrategy) -> None:
        self._engine, self._profile, self._version = engine, 0, 0
        self._shapes: dict[str, Shape] = {}
        self._addresses: dict[str, int] = {}
        self._has_memory = strategy is ExecutionContextAllocationStrategy.STATIC

    def set_optimization_profile_async(self, profile_index: int, stream_handle: int) -> bool:
        self._version += 1
        if self._engine.cuda.stream(stream_handle) is None or not 0 <= profile_index < len(self._engine.profiles):
            return self._engine.refuse(f"no stream {stream_handle}, or no profile {profile_index}")
        self._profile, self._shapes = profile_index, {}
        return True

    def set_device_memory(self, memory: int, size: int) -> None:
        self._version += 1
        enough = size >= self._engine.device_memory_size_v2 and memory % ALIGNED == 0
        self._has_memory = enough and self._engine.cuda.is_within(self._engine.cuda.device_memory, memory, size)

    def set_input_shape(self, name: str, shape: Shape) -> bool:
        self._version += 1
        least, _, most = self._engine.profiles[self._profile][name]
        if len(shape) != len(least) or not all(
            low <= dim <= high for low, dim, high in zip(least, shape, most, strict=True)
        ):
            return self._engine.refuse(f"{name} {shape} is not within {least} and {most}")
        self._shapes[name] = tuple(shape)
        return True

    def set_tensor_address(self, name: str, memory: int) -> bool:
        self._version += 1
        if memory % ALIGNED or name not in (*self._engine.inputs, *self._engine.outputs):
            return self._engine.refuse(f"{name} at {memory}")
        self._addresses[name] = memory
        return True

    def infer_shapes(self) -> list[str]:
        return [name for name in self._engine.inputs if name not in self._shapes]

    def get_tensor_shape(self, name: str) -> Shape:
        if self.infer_shapes():
            return (-1,)
        return self._shapes[name] if name in self._shapes else self._results(zeros=True)[name].shape

    def execute_async_v3(self, stream_handle: int) -> bool:
        cuda, engine = self._engine.cuda, self._engine
        on = cuda.stream(stream_handle)
        if on is None or not self._has_memory or self.infer_shapes():
            return engine.refuse("no such stream, no working memory, or no shapes")
        if cuda.last_error != OK:
            return engine.refuse(f"an error of CUDA is pending: {cuda.last_error.name}")
        if len(self._shapes) > 1 and len({shape[0] for shape in self._shapes.values()}) > 1:
            return engine.refuse("inputs of several numbers of rows")
        for name, dtype in {**engine.inputs, **engine.outputs}.items():
            num_bytes = int(np.prod(self.get_tensor_shape(name))) * np.dtype(dtype).itemsize
            if not cuda.is_within(cuda.device_memory, self._addresses.get(name, 0), num_bytes):
                return engine.refuse(f"{name} has no memory of {num_bytes} bytes")
        version = self._version

        def work() -> None:
            assert version == self._version, "the context was changed after its work was put on a stream"
            for name, result in self._results(zeros=False).items():
                self._view(name, result.shape, result.dtype)[...] = result

        on.add(work)
        return True

    def _results(self, *, zeros: bool) -> dict[str, np.ndarray[Any, Any]]:
        engine = self._engine
        feed = {
            name: np.zeros(shape, engine.inputs[name]) if zeros else self._view(name, shape, engine.inputs[name])
            for name, shape in self._shapes.items()
        }
        return dict(zip(engine.outputs, engine.session.run(list(engine.outputs), feed), strict=True))

    def _view(self, name: str, shape: Shape, dtype: Any) -> np.ndarray[Any, Any]:
        num_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        held = (ctypes.c_char * num_bytes).from_address(self._addresses[name])
        return np.ndarray(shape, dtype, buffer=held)  # type: ignore[arg-type]


class ICudaEngine:
    device_memory_size_v2 = WORKING_BYTES

    def __init__(self, cuda: FakeCuda, logger: ILogger, head: dict[str, Any]) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.cuda, self._logger = cuda, logger
        self.session = ort.InferenceSession(head["onnx"], options, providers=["CPUExecutionProvider"])
        self.profiles = [
            {name: tuple(tuple(shape) for shape in shapes) for name, shapes in profile.items()}
            for profile in head["profiles"]
        ]
        self.inputs = {port.name: TYPES[port.type] for port in self.session.get_inputs()}
        self.outputs = {port.name: TYPES[port.type] for port in self.session.get_outputs()}
        self.num_io_tensors, self.num_optimization_profiles = len(self.inputs) + len(self.outputs), len(self.profiles)
        self.contexts: list[IExecutionContext] = []

    def get_tensor_name(self, index: int) -> str:
        return [*self.inputs, *self.outputs][index]

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        return TensorIOMode.INPUT if name in self.inputs else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> Any:
        return {**self.inputs, **self.outputs}[name]

    def get_tensor_profile_shape(self, name: str, profile_index: int) -> list[Shape]:
        return list(self.profiles[profile_index][name])

    def create_execution_context(
        self, strategy: ExecutionContextAllocationStrategy = ExecutionContextAllocationStrategy.STATIC
    ) -> IExecutionContext:
        self.contexts.append(IExecutionContext(self, strategy))
        return self.contexts[-1]

    def refuse(self, why: str) -> bool:
        self._logger.log(Severity.ERROR, why)
        return False


class FakeTensorRt(types.ModuleType):
    """`tensorrt`."""

    __version__ = VERSION
    ILogger, TensorIOMode = ILogger, TensorIOMode
    ExecutionContextAllocationStrategy = ExecutionContextAllocationStrategy

    def __init__(self, cuda: FakeCuda) -> None:
        super().__init__("tensorrt")
        self.engines: list[ICudaEngine] = []
        fake = self

        class Runtime:
            def __init__(self, logger: ILogger) -> None:
                assert logger.is_made, "ILogger.__init__ was not called"
                self._logger = logger

            def deserialize_cuda_engine(self, serialized_engine: bytes) -> ICudaEngine | None:
                head = json.loads(serialized_engine[len(MAGIC) :]) if serialized_engine.startswith(MAGIC) else {}
                if head.get("version") != VERSION:
                    self._logger.log(Severity.ERROR, "the plan is not one of this version")
                    return None
                fake.engines.append(ICudaEngine(cuda, self._logger, head))
                return fake.engines[-1]

        self.Runtime = Runtime

    @staticmethod
    def nptype(trt_type: Any) -> Any:
        return trt_type


@dataclass(frozen=True)
class Fakes:
    trt: FakeTensorRt
    cuda: FakeCuda


def install(monkeypatch: pytest.MonkeyPatch, *, devices: int = 1) -> Fakes:
    """From now on `tensorrt` and `cuda.bindings.runtime` are these."""
    cuda = FakeCuda(devices)
    trt = FakeTensorRt(cuda)
    packages = {"cuda": types.ModuleType("cuda"), "cuda.bindings": types.ModuleType("cuda.bindings")}
    for name, module in {**packages, "cuda.bindings.runtime": cuda, "tensorrt": trt}.items():
        monkeypatch.setitem(sys.modules, name, module)
    return Fakes(trt=trt, cuda=cuda)
