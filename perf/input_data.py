"""Requests as perf_analyzer's input data: base64 tensors with their shapes, by the contract of each model."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from proteus.contract import Dtype, ModelSpec, TensorSpec

Value = bytes | str | npt.NDArray[Any]  # of a UINT8 [n], of a STRING [1], of any other tensor
Tensors = Mapping[str, Mapping[str, Any]]
NUMPY: Mapping[Dtype, type[np.generic]] = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP32": np.float32,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one model is asked, and of which size."""

    spec: ModelSpec
    bucket: str  # as tables name it: "1 MP", "text", "64x64"
    request: Callable[[int], Tensors]  # by number; requests of other numbers share no entry of a cache with it
    cached: bool  # whether the same request, once more, would be answered by a cache

    @property
    def model(self) -> str:
        return self.spec.name


def tensors(spec: ModelSpec, values: Mapping[str, Value]) -> Tensors:
    """One request of `spec`; raises ValueError for a name that the contract has not, or has and is not given."""
    inputs = {tensor.name: tensor for tensor in spec.inputs}
    missing = {name for name, tensor in inputs.items() if not tensor.optional} - values.keys()
    unknown = values.keys() - inputs.keys()
    if missing or unknown:
        raise ValueError(f"inputs of {spec.name}: {sorted(missing)} are missing, {sorted(unknown)} are unknown")
    return {name: _tensor(inputs[name], value) for name, value in values.items()}


def _tensor(spec: TensorSpec, value: Value) -> Mapping[str, Any]:
    if isinstance(value, str):
        return {"content": [value], "shape": [1]}
    array = np.frombuffer(value, np.uint8) if isinstance(value, bytes) else value
    raw = np.ascontiguousarray(array, dtype=np.dtype(NUMPY[spec.dtype]).newbyteorder("<")).tobytes()
    return {"content": {"b64": base64.b64encode(raw).decode()}, "shape": list(array.shape)}


def write(file: Path, requests: Iterable[Tensors]) -> None:
    """One after the other, for together they may not fit into memory."""
    with file.open("w", encoding="utf-8") as out:
        out.write('{"data": [')
        for number, request in enumerate(requests):
            out.write(",\n" if number else "\n")
            json.dump(request, out)
        out.write("\n]}\n")
