"""Which products are FP8, and what is stored of them."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from export.precision import typed
from export.precision_fp8 import LARGEST, fp8_nodes
from tests.export.tiny_graphs import normal, write

PLANE = "float[N, 32, 8, 8]"


def chosen(path: Path, stage: str) -> list[str]:
    graph = ir.load(path).graph
    return [str(node.name) for node in fp8_nodes(graph, stage, set(graph))]


@pytest.mark.parametrize(
    ("body", "shape", "ends", "is_chosen"),
    [
        ("y = MatMul(x, w)", (32, 32), "float[N, 32]", True),
        ("y = MatMul(w, x)", (32, 32), "float[32, 32]", False),  # weights on the left
        ("y = MatMul(x, x)", (32, 32), "float[32, 32]", False),  # attention
        ("y = MatMul(x, w)", (16, 16), "float[N, 16]", False),  # too small
        ("y = MatMul(x, w)", (2, 32, 32), "float[2, N, 32]", False),  # many matrices
        ("y = Gemm<transB = 1>(x, w)", (32, 32), "float[N, 32]", True),
        ("y = Conv<pads = [1, 1, 1, 1]>(x, w)", (32, 32, 3, 3), PLANE, True),
        ("y = Conv<pads = [3, 3, 3, 3]>(x, w)", (32, 32, 7, 7), PLANE, False),  # large kernel
        ("y = Conv<pads = [1, 1, 1, 1], group = 32>(x, w)", (32, 1, 3, 3), PLANE, False),  # a channel at a time
        ("y = ConvTranspose<pads = [1, 1, 1, 1]>(x, w)", (32, 32, 3, 3), PLANE, False),
        ("y = Mul(x, w)", (32, 32), "float[32, 32]", False),
    ],
)
def test_products_with_a_stored_matrix_are_chosen(
    body: str, shape: tuple[int, ...], ends: str, is_chosen: bool, tmp_path: Path
) -> None:
    path = write(tmp_path / "g.onnx", body, {"w": normal(*shape)}, ends=ends)
    assert bool(chosen(path, "connector")) == is_chosen


def test_ends_of_the_denoiser_and_products_of_vectors_are_not_chosen(tmp_path: Path) -> None:
    body = "a = MatMul(x, w) b = MatMul(a, w) c = Gemm(b, w) d = MatMul(c, w) y = MatMul(d, w)"
    path = write(tmp_path / "g.onnx", body, {"w": normal(32, 32)}, ends="float[N, 32]")
    assert chosen(path, "denoiser") == ["MatMul_1", "MatMul_3"]
    assert len(chosen(path, "vision_encoder")) == 5


@pytest.mark.parametrize(
    ("body", "axis"), [("y = MatMul(x, w)", 1), ("y = Gemm<transB = 1>(x, w)", 0), ("y = Gemm(x, w)", 1)]
)
def test_each_channel_has_a_scale_that_its_largest_weight_just_fits(body: str, axis: int, tmp_path: Path) -> None:
    channels = np.geomspace(0.1, 1.0, 32, dtype=np.float32)
    weight = normal(32, 32) * (channels if axis == 1 else channels[:, None])
    path = write(tmp_path / "g.onnx", body, {"w": weight}, ends="float[N, 32]")
    report = typed(path, "connector", "fp8", [{"x": normal(4, 32, seed=1)}], tmp_path / "low.onnx")
    assert (report.fp8_nodes, report.casts) == (1, 2)
    graph = ir.load(tmp_path / "low.onnx").graph
    stored = {name: value.const_value.numpy() for name, value in graph.initializers.items()}
    (codes,) = (array for array in stored.values() if array.ndim == 2)
    (scales,) = (array for array in stored.values() if array.dtype == np.float16 and array.ndim == 1)
    assert codes.dtype == ml_dtypes.float8_e4m3fn
    fits = LARGEST * scales.astype(np.float32)  # of the weight as float16 has it
    assert np.allclose(fits, np.abs(weight).max(axis=1 - axis), rtol=0.02)
    back = codes.astype(np.float32) * np.expand_dims(scales.astype(np.float32), 1 - axis)
    assert np.abs(back - weight).max() <= 2.0**-4 * np.abs(weight).max()
    assert [node.attributes["axis"].as_int() for node in graph if "axis" in node.attributes] == [axis]


def test_one_quantised_input_serves_all_that_read_it(tmp_path: Path) -> None:
    body = "a = MatMul(x, w) b = MatMul(x, v) y = Add(a, b)"
    path = write(tmp_path / "g.onnx", body, {"w": normal(32, 32), "v": normal(32, 32, seed=1)}, ends="float[N, 32]")
    typed(path, "connector", "fp8", [{"x": normal(4, 32, seed=2)}], tmp_path / "low.onnx")
    assert [node.op_type for node in ir.load(tmp_path / "low.onnx").graph].count("QuantizeLinear") == 1


def test_an_output_that_another_product_reads_is_quantised_too(tmp_path: Path) -> None:
    body = "y = MatMul(x, w) unread = MatMul(y, v)"
    path = write(tmp_path / "g.onnx", body, {"w": normal(32, 32), "v": normal(32, 32, seed=1)}, ends="float[N, 32]")
    report = typed(path, "connector", "fp8", [{"x": normal(4, 32, seed=2)}], tmp_path / "low.onnx")
    assert (report.fp8_nodes, report.outputs[0].output) == (2, "y")
