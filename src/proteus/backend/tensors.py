"""Triton's tensors <-> numpy, by the names of the contract. Triton hands out copies that stay."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import triton_python_backend_utils as pb_utils

from proteus.backend.fleet import Context
from proteus.backend.spans import Trace

Array = npt.NDArray[Any]


def read(request: Any, tensor: str) -> Array | None:
    """An input; None when an optional one was left out."""
    found = pb_utils.get_input_tensor_by_name(request, tensor)
    return None if found is None else found.as_numpy()


def read_bytes(request: Any, tensor: str) -> bytes | None:
    """A UINT8 input as bytes."""
    array = read(request, tensor)
    return None if array is None else array.tobytes()


def read_string(request: Any, tensor: str) -> bytes:
    """The one element of a required STRING input, undecoded."""
    element = pb_utils.get_input_tensor_by_name(request, tensor).as_numpy().reshape(-1)[0]
    return element if isinstance(element, bytes) else str(element).encode()


def read_context(request: Any, trace: Trace | None = None) -> Context:
    """What a model must hand on to its children."""
    parameters = json.loads(request.parameters() or "{}")
    return Context(request_id=request.request_id(), parameters=parameters, timeout_us=request.timeout(), trace=trace)


def read_outputs(response: Any) -> dict[str, Array]:
    """Outputs of a child that are there, by name."""
    return {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}


def tensors(arrays: Mapping[str, Array]) -> list[Any]:
    return [pb_utils.Tensor(name, array) for name, array in arrays.items()]


def from_bytes(data: bytes) -> Array:
    """Bytes as UINT8 [-1]."""
    return np.frombuffer(data, dtype=np.uint8)


def from_text(text: str) -> Array:
    """Text as STRING [1]."""
    return np.array([text.encode()], dtype=np.object_)
