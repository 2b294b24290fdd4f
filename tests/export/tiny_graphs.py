"""ONNX graphs of a few nodes, float32 in and out, as text in ONNX's own notation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray


def write(path: Path, body: str, weights: Mapping[str, NDArray[np.generic]], *, ends: str = "float[N, 16]") -> Path:
    """`x` to `y`, both of type `ends`; `body` has a line for each node."""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> g ({ends} x) => ({ends} y) {{ {body} }}')
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    for number, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{number}"
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
    return path


def normal(*shape: int, scale: float = 1.0, seed: int = 0) -> NDArray[np.float32]:
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)
