"""What is emulated is what hardware computes: held against ONNX Runtime's float16 and FP8, and torch's own kernels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
import torch
from numpy.typing import NDArray

from export.parity import open_session
from export.precision_fp8 import quantise
from export.precision_graph import Lowering, save
from export.precision_regions import is_product
from export.precision_runs import run_typed, run_watched
from tests.export.tiny_graphs import normal, write

OPERATORS = {
    "matmul": ("y = MatMul(x, w)", {"w": normal(16, 16, seed=1)}, (5, 16)),
    "gemm": ("y = Gemm<transB = 1>(x, w, b)", {"w": normal(16, 16, seed=1), "b": normal(16, seed=2)}, (5, 16)),
    "conv": ("y = Conv<pads = [1, 1, 1, 1]>(x, w)", {"w": normal(4, 4, 3, 3, seed=1)}, (2, 4, 6, 6)),
    "add": ("y = Add(x, w)", {"w": normal(16, seed=1)}, (5, 16)),
    "mul": ("y = Mul(x, w)", {"w": normal(16, seed=1)}, (5, 16)),
    "gelu": ("y = Gelu(x)", {}, (5, 16)),
    "sigmoid": ("y = Sigmoid(x)", {}, (5, 16)),
    "transpose": ("y = Transpose<perm = [1, 0]>(x)", {}, (16, 16)),
}


def real(model: ir.Model, folder: Path, x: NDArray[np.float32]) -> NDArray[np.float16]:
    """The graph as it is, up to its last cast: the runtime leaves out a cast up again, and with it the rounding."""
    last = model.graph.outputs[0].producer().inputs[0]
    last.shape, model.graph.outputs[0] = model.graph.outputs[0].shape, last
    save(model, folder / "real.onnx")
    return open_session(folder / "real.onnx").run(None, {"x": x})[0]


def lowered(path: Path, dtype: ir.DataType) -> tuple[ir.Model, Lowering, list[ir.Node]]:
    """Every node moved."""
    model = ir.load(path)
    nodes = list(model.graph)
    lowering = Lowering(model.graph, dtype)
    lowering.move(nodes)
    return model, lowering, nodes


@pytest.mark.parametrize("name", OPERATORS)
def test_float16_is_emulated_within_one_rounding_of_the_runtimes_own(name: str, tmp_path: Path) -> None:
    body, weights, shape = OPERATORS[name]
    path = write(tmp_path / "g.onnx", body, weights, ends=f"float[{', '.join(map(str, shape))}]")
    model, _, _ = lowered(path, ir.DataType.FLOAT16)
    save(model, path)
    x = normal(*shape, seed=3).astype(np.float16).astype(np.float32)
    (emulated,) = run_typed(path, [{"x": x}], 1)
    want = real(model, tmp_path, x)
    assert want.dtype == np.float16
    assert (np.abs(emulated["y"] - want) <= np.spacing(np.abs(want)).astype(np.float32)).all()
    assert np.array_equal(emulated["y"], emulated["y"].astype(np.float16))


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", [ir.DataType.FLOAT16, ir.DataType.BFLOAT16], ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("name", ["matmul", "conv", "gelu", "sigmoid"])
def test_both_precisions_are_emulated_within_one_rounding_of_torchs_own_kernels(
    name: str, dtype: ir.DataType, tmp_path: Path
) -> None:
    body, weights, shape = OPERATORS[name]
    path = write(tmp_path / "g.onnx", body, weights, ends=f"float[{', '.join(map(str, shape))}]")
    model, _, _ = lowered(path, dtype)
    save(model, path)
    x = normal(*shape, seed=3)
    kind = torch.float16 if dtype == ir.DataType.FLOAT16 else torch.bfloat16
    given, weight = (torch.from_numpy(array).to(kind) for array in (x, weights.get("w", x)))
    want = {
        "matmul": lambda: given @ weight,
        "conv": lambda: torch.nn.functional.conv2d(given, weight, padding=1),
        "gelu": lambda: torch.nn.functional.gelu(given),
        "sigmoid": lambda: torch.sigmoid(given),
    }[name]()
    (emulated,) = run_typed(path, [{"x": x}], 1)
    got = torch.from_numpy(emulated["y"])
    assert torch.equal(got, got.to(kind).float())
    # One step of each value, and for what nearly cancels what float32 sums in another order.
    assert ((got - want.float()).abs() <= torch.finfo(kind).eps * want.float().abs() + 1e-5).all()


@pytest.mark.parametrize("name", ["matmul", "gemm", "conv"])
def test_fp8_is_emulated_within_one_rounding_of_the_runtimes_own(name: str, tmp_path: Path) -> None:
    body, weights, shape = OPERATORS[name]
    path = write(tmp_path / "g.onnx", body, weights, ends=f"float[{', '.join(map(str, shape))}]")
    x = normal(*shape, seed=3).astype(np.float16).astype(np.float32)
    watched = run_watched(path, [{"x": x}], 1)
    model, lowering, nodes = lowered(path, ir.DataType.FLOAT16)
    quantise(lowering, [node for node in nodes if is_product(node)], watched.peaks)
    save(model, path)
    (emulated,) = run_typed(path, [{"x": x}], 1)
    want = real(model, tmp_path, x)
    assert np.abs(emulated["y"] - want).max() <= np.spacing(np.abs(want).max())
    exact = watched.outputs[0]["y"]
    assert 0.005 < np.abs(want - exact).max() / np.abs(exact).max() < 0.1
    assert {weight.dtype for weight in model.graph.initializers.values() if weight.shape.rank() >= 2} == {
        ir.DataType.FLOAT8E4M3FN
    }


def test_every_float_is_watched_over_all_samples_and_weights_are_not(tmp_path: Path) -> None:
    path = write(tmp_path / "g.onnx", "h = MatMul(x, w) y = Neg(h)", {"w": 3 * np.eye(16, dtype=np.float32)})
    samples = [{"x": np.full((2, 16), value, np.float32)} for value in (1.0, -5.0, 2.0)]
    watched = run_watched(path, samples, 1)
    assert watched.peaks == {"x": 5.0, "h": 15.0, "y": 15.0}
    assert [float(answer["y"][0, 0]) for answer in watched.outputs] == [-3.0, 15.0, -6.0]


@pytest.mark.parametrize("place", [0, 1, 8, 15])
def test_a_value_that_is_no_number_is_found_wherever_it_stands_and_has_no_limit(place: int, tmp_path: Path) -> None:
    path = write(tmp_path / "g.onnx", "h = Log(x) y = Neg(h)", {})
    x = np.ones((1, 16), np.float32)
    x[0, place] = -1.0
    assert run_watched(path, [{"x": x}, {"x": np.ones_like(x)}], 1).peaks["h"] == np.inf
