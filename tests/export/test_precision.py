"""Typed graphs: of toys, whose every cast is known, and of the demo's stages, which TensorRT for RTX then builds."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from export import precision, precision_graph
from export.calibration import Sample, samples_of
from export.engines_parity import FP32_OF_SCALE
from export.onnx_graph import INLINE_LIMIT_BYTES
from export.parity import open_session
from export.precision import PrecisionReport, UnsupportedPrecision, typed
from export.precision_parity import LIMITS
from export.precision_regions import low_nodes
from proteus.deployment import Deployment
from tests.export.tiny_graphs import normal, write

ROOT = Path(__file__).parents[2]
FLOAT32_ONLY = {"LayerNormalization", "InstanceNormalization", "Softmax", "Sin", "Cos"}
# Two products around a function; a residual; a normalisation behind.
NET = "a = MatMul(x, w) b = Gelu(a) c = MatMul(b, v) d = Add(c, x) y = LayerNormalization<axis = -1>(d, g)"


@pytest.fixture(scope="session")
def demo() -> Deployment:
    return Deployment.load(ROOT / "deployments/demo.toml")


def net(folder: Path, *, up: float = 1.0, down: float = 1.0) -> Path:
    weights = {"w": normal(16, 16, scale=up, seed=1), "v": normal(16, 16, scale=down, seed=2)}
    return write(folder / "net.onnx", NET, {**weights, "g": np.ones(16, np.float32)})


def samples(*scales: float) -> list[Sample]:
    return [{"x": normal(4, 16, scale=scale, seed=seed)} for seed, scale in enumerate(scales)]


def dtypes(path: Path) -> dict[str, str]:
    """Of what each node makes, casts aside."""
    graph = ir.load(path).graph
    return {str(node.name): node.outputs[0].dtype.short_name() for node in graph if node.op_type != "Cast"}


def graph_of(demo: Deployment, stage: str) -> Path:
    return demo.repository_path / stage / "1" / ("denoiser.onnx" if stage == "denoiser" else "model.onnx")


@pytest.mark.parametrize(("name", "short"), [("fp16", "f16"), ("bf16", "bf16")])
def test_products_and_what_lies_between_are_low_with_the_fewest_casts(
    name: precision.Precision, short: str, tmp_path: Path
) -> None:
    source = net(tmp_path)
    report = typed(source, "connector", name, samples(1, 2), tmp_path / "low.onnx")
    assert dtypes(tmp_path / "low.onnx") == {
        "MatMul_0": short,
        "Gelu_1": short,
        "MatMul_2": short,
        "Add_3": short,
        "LayerNormalization_4": "f32",
    }
    assert (report.low_nodes, report.casts, report.kept) == (4, 2, ())
    onnx.checker.check_model(str(tmp_path / "low.onnx"), full_check=True)


@pytest.mark.parametrize(("name", "digits"), [("fp16", 1e-3), ("bf16", 1e-2)])
def test_report_tells_how_far_off_each_output_is(name: precision.Precision, digits: float, tmp_path: Path) -> None:
    report = typed(net(tmp_path), "connector", name, samples(1, 2), tmp_path / "low.onnx")
    (output,) = report.outputs
    assert (output.output, output.non_finite, report.num_samples) == ("y", 0, 2)
    assert digits / 100 < output.of_scale < digits * 3
    assert output.max_abs_diff == pytest.approx(output.of_scale * output.scale, rel=0.5)
    assert 0.999 < output.cosine < 1.0
    assert report.file_bytes == (tmp_path / "low.onnx").stat().st_size
    assert json.loads(json.dumps(dataclasses.asdict(report)))["outputs"][0]["output"] == "y"


def test_fp32_is_the_same_graph(tmp_path: Path) -> None:
    source, x = net(tmp_path), samples(1)[0]
    report = typed(source, "connector", "fp32", [x], tmp_path / "same.onnx")
    assert (report.low_nodes, report.casts, report.outputs) == (0, 0, ())
    want, got = (open_session(path).run(None, dict(x))[0] for path in (source, tmp_path / "same.onnx"))
    assert np.array_equal(got, want)


def test_what_overflows_is_found_kept_float32_and_the_answer_stays_right(tmp_path: Path) -> None:
    source = net(tmp_path, up=3e4, down=1e-4)
    report = typed(source, "connector", "fp16", samples(0.01, 1), tmp_path / "low.onnx")
    assert [(kept.node, kept.value) for kept in report.kept] == [("MatMul_0", "a"), ("Gelu_1", "a"), ("MatMul_2", "b")]
    assert all(kept.peak > 65504 for kept in report.kept)
    assert set(dtypes(tmp_path / "low.onnx").values()) == {"f32"}
    assert report.outputs[0].of_scale < 1e-3


def test_a_graph_that_overflows_unseen_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "HEADROOM", np.inf)
    with pytest.raises(UnsupportedPrecision) as raised:
        typed(net(tmp_path, up=3e3, down=1e-4), "vae_decoder", "fp16", samples(20), tmp_path / "low.onnx")
    assert str(raised.value) == (
        "unsupported_precision: vae_decoder in fp16: y has 64 values that are not finite; "
        'fix: choose "bf16" or "fp32" as precision of [gpu.vae_decoder]'
    )
    assert not (tmp_path / "low.onnx").exists()


def test_weights_that_overflow_are_kept_whatever_the_samples_say(tmp_path: Path) -> None:
    source = net(tmp_path, up=1e5)
    zero = [{"x": np.zeros((1, 16), np.float32)}]
    report = typed(source, "connector", "fp16", zero, tmp_path / "low.onnx")
    assert [(kept.node, kept.value) for kept in report.kept] == [("MatMul_0", "w")]


def test_what_is_not_float_keeps_its_type(tmp_path: Path) -> None:
    body = "a = Conv(x, w) y, places = MaxPool<kernel_shape = [1, 1]>(a)"
    source = write(tmp_path / "g.onnx", body, {"w": normal(4, 4, 1, 1)}, ends="float[N, 4, 8, 8]")
    typed(source, "connector", "fp16", [{"x": normal(1, 4, 8, 8)}], tmp_path / "low.onnx")
    kinds = [[value.dtype for value in node.outputs] for node in ir.load(tmp_path / "low.onnx").graph][-2]
    assert kinds == [ir.DataType.FLOAT16, ir.DataType.INT64]


def test_bf16_does_not_overflow_where_fp16_does(tmp_path: Path) -> None:
    assert typed(net(tmp_path, up=3e4), "connector", "bf16", samples(1), tmp_path / "low.onnx").kept == ()


def test_a_precision_that_loses_the_answer_is_refused_by_stage_number_limit_and_fix(tmp_path: Path) -> None:
    body = "a = MatMul(x, w) b = Add(a, big) c = Sub(b, big) y = MatMul(c, w)"
    eye, big = np.eye(16, dtype=np.float32), np.float32(3000)
    source = write(tmp_path / "lost.onnx", body, {"w": eye, "big": np.full(16, big)})
    for name in ("fp16", "bf16"):
        with pytest.raises(
            UnsupportedPrecision, match=rf"vae_decoder in {name}: y is off by .*%.*limit: .*\[gpu.vae_decoder\]"
        ):
            typed(source, "vae_decoder", name, samples(1), tmp_path / "low.onnx")
    assert not (tmp_path / "low.onnx").exists()


def test_one_large_channel_does_not_hide_that_all_others_are_lost(tmp_path: Path) -> None:
    body = "a = MatMul(x, w) b = Add(a, big) c = Sub(b, big) y = MatMul(c, v)"
    eye, first = np.eye(16, dtype=np.float32), np.zeros(16, np.float32)
    first[0] = 1.0
    weights = {"w": eye, "v": eye + np.diag(1000 * first), "big": 3000 * (1 - first)}
    source = write(tmp_path / "lost.onnx", body, weights)
    with pytest.raises(UnsupportedPrecision, match=r"fp16: y is off by .*% of what its values commonly"):
        typed(source, "text_encoder", "fp16", samples(1), tmp_path / "low.onnx")


@pytest.mark.parametrize("stage", ["text_encoder", "vae_decoder"])
def test_fp8_is_refused_by_name_where_it_costs_too_much(stage: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedPrecision, match=rf"{stage} is not computed in fp8: .*off by.*\[gpu.{stage}\]"):
        typed(net(tmp_path), stage, "fp8", samples(1), tmp_path / "low.onnx")


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("y = com.microsoft.Gelu(x)", "Gelu (com.microsoft)"),
        (
            "t = Cast<to = 9>(z) y = If (t) <then_branch = one () => (float[N, 16] o) {o = Neg(x)}, "
            "else_branch = two () => (float[N, 16] p) {p = Abs(x)}>",
            "If (with graphs inside)",
        ),
    ],
)
def test_graphs_that_tensorrt_cannot_have_are_refused(body: str, named: str, tmp_path: Path) -> None:
    head = (
        '<ir_version: 10, opset_import: ["": 20, "com.microsoft": 1]> g (float[N, 16] x, float z) => (float[N, 16] y)'
    )
    onnx.save(onnx.parser.parse_model(f"{head} {{ {body} }}"), tmp_path / "g.onnx")
    with pytest.raises(UnsupportedPrecision) as raised:
        typed(tmp_path / "g.onnx", "connector", "fp16", samples(1), tmp_path / "low.onnx")
    assert named in str(raised.value)


@pytest.mark.parametrize("untyped", [("b",), ("a", "b", "c", "d")])
def test_a_graph_that_does_not_tell_its_types_is_refused(untyped: tuple[str, ...], tmp_path: Path) -> None:
    source = net(tmp_path)
    model = onnx.load(source)
    for value in [value for value in model.graph.value_info if value.name in untyped]:
        model.graph.value_info.remove(value)
    onnx.save(model, source)
    with pytest.raises(UnsupportedPrecision, match=f"the type of {untyped[0]}; .*export the checkpoint again"):
        typed(source, "connector", "fp16", samples(1), tmp_path / "low.onnx")


def test_documented_limits_are_those_that_are_checked() -> None:
    page = (ROOT / "docs/tensorrt.md").read_text()
    for name in ("fp16", "bf16", "fp8"):
        limit = LIMITS[name]
        assert f"| `{name}` | {limit.of_scale:.0%} | {limit.typical:.0%} | {limit.cosine} |".replace("%", " %") in page
    assert f"| `fp32` | {FP32_OF_SCALE:.1%}; pixels: 1 of 255 |".replace("%", " %") in page


def test_weights_too_large_for_one_file_lie_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, x = net(tmp_path), samples(1)
    whole = typed(source, "connector", "fp16", x, tmp_path / "whole.onnx")
    assert INLINE_LIMIT_BYTES > whole.file_bytes
    monkeypatch.setattr(precision_graph, "INLINE_LIMIT_BYTES", 100)
    split = typed(source, "connector", "fp16", x, tmp_path / "split.onnx")
    assert (tmp_path / "split.onnx.data").exists()
    assert (split.outputs, split.file_bytes) == (whole.outputs, pytest.approx(whole.file_bytes, abs=1000))
    again = typed(tmp_path / "split.onnx", "connector", "fp32", x, tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx.data").exists() and again.source_bytes == split.file_bytes
    monkeypatch.setattr(precision_graph, "INLINE_LIMIT_BYTES", INLINE_LIMIT_BYTES)
    typed(tmp_path / "again.onnx", "connector", "fp16", x, tmp_path / "one.onnx")
    (tmp_path / "again.onnx.data").unlink()
    assert not (tmp_path / "one.onnx.data").exists()
    assert open_session(tmp_path / "one.onnx").run(None, dict(x[0]))


@pytest.mark.parametrize("stage", ["vision_encoder", "text_encoder", "denoiser", "vae_decoder"])
def test_statistics_sums_of_exponentials_and_angles_stay_float32(stage: str, demo: Deployment) -> None:
    graph = ir.load(graph_of(demo, stage)).graph
    low = low_nodes(graph, ())
    assert {node.op_type for node in low} & FLOAT32_ONLY == set()
    assert {node.op_type for node in graph if node.op_type in ("MatMul", "Gemm", "Conv") and node not in low} == set()


BUILT = [
    *((stage, name) for stage in ("vision_encoder", "connector") for name in ("fp16", "bf16", "fp8")),
    *((stage, name) for stage in ("text_encoder", "vae_decoder") for name in ("fp16", "bf16")),
    *(pytest.param("denoiser", name, marks=pytest.mark.slow) for name in ("fp16", "fp8")),
]


@pytest.mark.parametrize(("stage", "name"), BUILT)
def test_stages_of_the_demo_are_right_in_every_precision_and_tensorrt_builds_them(
    stage: str, name: precision.Precision, demo: Deployment, tmp_path: Path
) -> None:
    source, out = graph_of(demo, stage), tmp_path / "low.onnx"
    report: PrecisionReport = typed(source, stage, name, samples_of(demo, stage), out)
    assert report.low_nodes > 0 and (report.fp8_nodes > 0) == (name == "fp8")
    assert report.file_bytes < report.source_bytes * 0.6
    assert {kept.op for kept in report.kept} <= {"Where", "Add"}  # of the mask, which holds the lowest number there is
    assert max(output.of_scale for output in report.outputs) < {"fp16": 0.005, "bf16": 0.02, "fp8": 0.15}[name]
    before, after = (onnx.load(path, load_external_data=False).graph for path in (source, out))
    assert list(after.input) == list(before.input)
    assert [(port.name, port.type) for port in after.output] == [(port.name, port.type) for port in before.output]
    onnx.checker.check_model(str(out), full_check=True)
    assert build(out) > 0


def build(path: Path) -> int:
    """Bytes of an engine for one compute capability that has FP8; it cannot be run here."""
    import tensorrt_rtx as trt

    builder = trt.Builder(trt.Logger(trt.Logger.ERROR))
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, trt.Logger(trt.Logger.ERROR))
    assert parser.parse_from_file(str(path)), [parser.get_error(at).desc() for at in range(parser.num_errors)]
    config, profile = builder.create_builder_config(), builder.create_optimization_profile()
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.SM89, 0)
    for port in ir.load(path).graph.inputs:
        free = {"height": (8, 8, 12), "width": (8, 8, 12)}
        dims = [(dim,) * 3 if isinstance(dim, int) else free.get(str(dim), (1, 4, 8)) for dim in port.shape]
        profile.set_shape(port.name, *zip(*dims, strict=True))
    config.add_optimization_profile(profile)
    return len(bytes(builder.build_serialized_network(network, config)))


@pytest.mark.parametrize("name", ["fp16", "bf16", "fp8"])
@pytest.mark.parametrize("stage", ["vision_encoder", "connector"])
def test_stages_of_random_weights_are_right_too(
    stage: str, name: precision.Precision, tiny_export: Path, tmp_path: Path
) -> None:
    deployment = Deployment.load(tiny_export / "deployment.toml")
    report = typed(graph_of(deployment, stage), stage, name, samples_of(deployment, stage), tmp_path / "low.onnx")
    assert report.low_nodes > 0 and report.kept == ()
