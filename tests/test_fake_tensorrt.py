"""The stand-in for TensorRT has no more than the real thing: TensorRT for RTX, whose Python API is the same one."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
import tensorrt_rtx

from tests import fake_tensorrt
from tests.fake_cuda import FakeCuda
from tests.fake_tensorrt import FakeTensorRt

FAKE: Any = FakeTensorRt(FakeCuda())
METHODS = [
    (kind, name)
    for kind in (FAKE.Runtime, fake_tensorrt.ICudaEngine, fake_tensorrt.IExecutionContext, fake_tensorrt.ILogger)
    for name, _ in inspect.getmembers(kind, inspect.isfunction)
    if not name.startswith("_") and name != "refuse"
]
VALUES = [
    (kind, name)
    for kind in (fake_tensorrt.TensorIOMode, fake_tensorrt.ExecutionContextAllocationStrategy, fake_tensorrt.Severity)
    for name in kind.__members__
]


@pytest.mark.parametrize(("kind", "name"), METHODS, ids=[f"{kind.__name__}.{name}" for kind, name in METHODS])
def test_every_method_has_the_arguments_of_the_real_one(kind: type, name: str) -> None:
    real = getattr(getattr(tensorrt_rtx, kind.__name__), name)
    ours = [argument for argument in inspect.signature(getattr(kind, name)).parameters if argument != "self"]
    told = re.findall(rf"{name}\(self: [\w.]+(.*?)\) ->", real.__doc__)
    assert ours in [re.findall(r"(?:^|, )(\w+): ", arguments) for arguments in told]


@pytest.mark.parametrize("name", ["num_io_tensors", "num_optimization_profiles", "device_memory_size_v2"])
def test_every_property_is_one_of_the_real_one(name: str) -> None:
    assert isinstance(inspect.getattr_static(tensorrt_rtx.ICudaEngine, name), property)


@pytest.mark.parametrize(("kind", "name"), VALUES, ids=[f"{kind.__name__}.{name}" for kind, name in VALUES])
def test_every_value_is_the_real_one(kind: Any, name: str) -> None:
    where = tensorrt_rtx.ILogger if kind is fake_tensorrt.Severity else tensorrt_rtx
    assert int(getattr(getattr(where, kind.__name__), name)) == int(kind[name])


def test_the_real_one_names_numpy_types() -> None:
    assert tensorrt_rtx.nptype(tensorrt_rtx.DataType.FLOAT).__name__ == "float32"
