"""Matrix products in FP8 (E4M3): their weights are stored so, one scale a channel, their inputs quantised by one scale.

Quantise and dequantise stand before a product, which TensorRT then computes in FP8; attention's own products, which
have no weights, are not among them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import ml_dtypes
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from export.precision_graph import Lowering
from export.precision_regions import is_product

LARGEST = 448.0
# Of NVIDIA's ModelOpt, modelopt/onnx/quantization/graph_utils.py: TensorRT has no FP8 kernels below and above these.
MOST_SMALL_SIDE, MOST_KERNEL_PLACES = 16, 32
FP8 = ir.DataType.FLOAT8E4M3FN
# Stages whose products may be FP8; True where those next to its inputs and outputs, and those of vectors, may not.
FP8_STAGES: Mapping[str, bool] = {"vision_encoder": False, "connector": False, "denoiser": True}


def fp8_nodes(graph: ir.Graph, stage: str, low: Collection[ir.Node]) -> list[ir.Node]:
    """The products of `low` that are quantised, in order."""
    products = [node for node in graph if node in low and is_product(node) and _can_be_fp8(node)]
    if not FP8_STAGES[stage]:
        return products
    fed, feeding = _reached(graph, forward=True), _reached(graph, forward=False)
    return [node for node in products if node.op_type != "Gemm" and node in fed and node in feeding]


def quantise(lowering: Lowering, nodes: Collection[ir.Node], peaks: Mapping[str, float]) -> None:
    """`nodes` were moved to the low precision before; `peaks` are of the float32 graph, by name."""
    inputs: dict[ir.Value, ir.Value] = {}
    for node in nodes:
        value, weight = node.inputs[0], node.inputs[1]
        if value not in inputs:
            peak = peaks[lowering.origins.get(value, str(value.name))]
            inputs[value] = _around(lowering, value, peak)
        node.replace_input_with(0, inputs[value])
        node.replace_input_with(1, _stored(lowering, node, weight))
    lowering.drop_unused()


def _around(lowering: Lowering, value: ir.Value, peak: float) -> ir.Value:
    """`value` quantised and back."""
    name, maker = value.name, value.producer()
    scale, zero = _scale(lowering, f"{name}_scale", np.asarray(peak)), _zero(lowering, f"{name}_zero", ())
    down = ir.node("QuantizeLinear", [value, scale, zero], name=f"quantise_{name}")
    up = ir.node("DequantizeLinear", [down.outputs[0], scale, zero], name=f"dequantise_{name}")
    _name(down, f"{name}_fp8", FP8)
    _name(up, f"{name}_fp8_back", lowering.dtype)
    lowering.insert(maker, (down, up))
    return up.outputs[0]


def _stored(lowering: Lowering, node: ir.Node, weight: ir.Value) -> ir.Value:
    """`weight` in FP8, one scale for each channel that the product gives."""
    array = weight.const_value.numpy().astype(np.float32)
    axis = _channel_axis(node, array.ndim)
    others = tuple(other for other in range(array.ndim) if other != axis)
    name = f"{weight.name}_of_{node.name}"
    scale = _scale(lowering, f"{name}_scale", np.abs(array).max(axis=others))
    steps = scale.const_value.numpy().astype(np.float32)
    shape = [-1 if other == axis else 1 for other in range(array.ndim)]
    codes = np.clip(array / steps.reshape(shape), -LARGEST, LARGEST).astype(ml_dtypes.float8_e4m3fn)
    stored = lowering.constant(f"{name}_fp8", codes, FP8)
    zero = _zero(lowering, f"{name}_zero", steps.shape)
    back = ir.node("DequantizeLinear", [stored, scale, zero], {"axis": axis}, name=f"dequantise_{name}")
    _name(back, f"{name}_back", lowering.dtype)
    lowering.insert(None, (back,))
    return back.outputs[0]


def _channel_axis(node: ir.Node, rank: int) -> int:
    if node.op_type == "Conv":
        return 0
    turned = node.op_type == "Gemm" and node.attributes.get_int("transB", 0)
    return 0 if turned else rank - 1


def _can_be_fp8(node: ir.Node) -> bool:
    """What TensorRT has FP8 kernels for: a stored matrix or kernel, with sides that are worth it."""
    left, right = node.inputs[0], node.inputs[1]
    if left is None or left.is_initializer() or right is None or not right.is_initializer():
        return False
    shape = right.const_value.shape.numpy()
    sides, kernel = shape[:2], shape[2:]
    if len(sides) < 2 or min(sides) <= MOST_SMALL_SIDE or node.op_type == "ConvTranspose":
        return False
    return math.prod(kernel) <= MOST_KERNEL_PLACES if node.op_type == "Conv" else not kernel


def _scale(lowering: Lowering, name: str, peak: NDArray[np.floating]) -> ir.Value:
    """Rounded up to the low precision, or the peak would not fit."""
    kind = lowering.dtype.numpy()
    wanted = np.maximum(peak / LARGEST, float(ml_dtypes.finfo(kind).smallest_normal)).astype(np.float32)
    rounded = wanted.astype(kind)
    up = np.where(rounded.astype(np.float32) < wanted, np.nextafter(rounded, kind.type(np.inf)), rounded)
    return lowering.constant(name, up.astype(kind), lowering.dtype)


def _zero(lowering: Lowering, name: str, shape: tuple[int, ...]) -> ir.Value:
    return lowering.constant(name, np.zeros(shape, ml_dtypes.float8_e4m3fn), FP8)


def _name(node: ir.Node, name: str, dtype: ir.DataType) -> None:
    node.outputs[0].name, node.outputs[0].dtype = name, dtype


def _reached(graph: ir.Graph, *, forward: bool) -> set[ir.Node]:
    """Nodes that a product comes before, or, backward, after."""
    found: set[ir.Node] = set()
    for node in graph if forward else reversed(graph):
        around = node.predecessors() if forward else node.successors()
        if any(other in found or is_product(other) for other in around):
            found.add(node)
    return found
