"""The builder, tried by TensorRT for RTX: what it makes, and what it says of a graph that cannot be built."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tensorrt_rtx as trt
from onnx import TensorProto, helper, numpy_helper

from export import tensorrt_plan
from export.tensorrt_check import random_sample
from export.tensorrt_plan import (
    BuildError,
    Settings,
    build_plan,
    check_operators,
    check_supported,
    load_timings,
    save_timings,
)
from proteus.profiles import Profile

SETTINGS = Settings(optimization_level=1, workspace_bytes=1 << 28, tf32=False, sms=(89,))
WIDTH = 8
WHOLE_BUILD = 10  # calls of a progress monitor, at least


def profile(least: int, best: int, most: int, *, name: str = "x", width: int = WIDTH) -> Profile:
    return Profile(name="fixed", shapes={name: ((least, width), (best, width), (most, width))})


def write(
    path: Path, nodes: Sequence[onnx.NodeProto], *, batch: str | int = "batch", domain: str | None = None
) -> Path:
    """A graph from x (batch, 8) to y."""
    weight = np.random.default_rng(0).standard_normal((WIDTH, 4)).astype(np.float32)
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weight, "weight")],
    )
    opsets = [helper.make_opsetid("", 20)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


PRODUCT = helper.make_node("MatMul", ["x", "weight"], ["y"], name="product")


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    return write(tmp_path / "model.onnx", [PRODUCT])


def test_a_graph_becomes_a_plan_and_its_phases_are_told(graph: Path) -> None:
    told: list[tuple[str, int, int]] = []
    plan = build_plan(trt, graph, "connector", [profile(1, 8, 8)], SETTINGS, lambda *step: told.append(step))
    assert memoryview(plan.content).nbytes > 1000
    assert plan.num_layers >= 1
    names = {name for name, _, _ in told}
    assert "Building engine" in names
    assert all((name, of, of) in told for name, _, of in told)  # each one ends
    assert all(0 <= done <= of for _, done, of in told)


def test_one_plan_serves_several_kinds_of_gpu_and_several_profiles(graph: Path) -> None:
    settings = Settings(optimization_level=3, workspace_bytes=1 << 28, tf32=True, sms=(80, 89, 120))
    build_plan(trt, graph, "connector", [profile(1, 2, 2), profile(3, 8, 8)], settings)


class Config:
    """The timing cache of TensorRT's builder, which TensorRT for RTX has not: what is of another GPU is not taken."""

    def __init__(self) -> None:
        self.cache: bytes | None = None

    def create_timing_cache(self, content: bytes) -> bytes | None:
        return None if content == b"no cache" else content

    def set_timing_cache(self, cache: bytes, ignore_mismatch: bool) -> bool:
        if cache == b"of another GPU" and not ignore_mismatch:
            return False
        self.cache = cache
        return True

    def get_timing_cache(self) -> Config:
        return self

    def serialize(self) -> bytes:
        return (self.cache or b"") + b", and more"


@pytest.mark.parametrize(
    ("before", "taken"),
    [(None, b""), (b"learnt", b"learnt"), (b"no cache", b""), (b"of another GPU", b"")],
)
def test_what_the_builder_learnt_is_kept_and_what_is_not_its_own_is_replaced(
    tmp_path: Path, before: bytes | None, taken: bytes
) -> None:
    file, config = tmp_path / "engines.timing" / "x.cache", Config()
    if before is not None:
        file.parent.mkdir()
        file.write_bytes(before)
    load_timings(config, file)
    assert config.cache == taken
    save_timings(config, file)
    assert file.read_bytes() == taken + b", and more"
    assert list(file.parent.iterdir()) == [file]


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_ends_a_build_at_its_next_step(graph: Path) -> None:
    told: list[str] = []

    def phase(name: str, done: int, of: int) -> None:
        told.append(name)
        interrupt()

    with pytest.raises(KeyboardInterrupt):
        build_plan(trt, graph, "connector", [profile(1, 8, 8)], SETTINGS, phase)
    assert len(told) < WHOLE_BUILD


def test_ctrl_c_is_not_lost_in_a_call_of_the_library(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python raises it where its code runs next, which is mostly in the logger: TensorRT drops what is raised there."""
    before, made, logged = signal.getsignal(signal.SIGINT), tensorrt_plan._listener, []

    def listener(module: Any) -> Any:
        class Interrupted(type(made(module))):  # type: ignore[misc]
            def log(self, severity: Any, message: str) -> None:
                if not logged:
                    interrupt()
                logged.append(message)

        return Interrupted()

    monkeypatch.setattr(tensorrt_plan, "_listener", listener)
    with pytest.raises(KeyboardInterrupt):
        build_plan(trt, graph, "connector", [profile(1, 8, 8)], SETTINGS)
    assert logged
    assert signal.getsignal(signal.SIGINT) is before


def test_what_fails_in_a_call_of_tensorrt_ends_the_build_as_it_is(graph: Path) -> None:
    def broken(*_: object) -> None:
        raise BrokenPipeError("nobody reads")

    with pytest.raises(BrokenPipeError, match="nobody reads"):
        build_plan(trt, graph, "connector", [profile(1, 8, 8)], SETTINGS, broken)


UNEQUAL = helper.make_node("Gemm", ["x", "weight"], ["y"], name="it", transB=1)
CONTRIB = helper.make_node("SimplifiedLayerNormalization", ["x", "weight"], ["y"], domain="com.microsoft")
BRANCH = helper.make_node(
    "If",
    ["yes"],
    ["y"],
    then_branch=helper.make_graph([CONTRIB], "then", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]),
    else_branch=helper.make_graph([PRODUCT], "else", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]),
)


@pytest.mark.parametrize(
    ("nodes", "batch", "given", "words"),
    [
        ([PRODUCT], 2, profile(1, 8, 8), ["dim 0 of x is fixed at 2", "wants 1 to 8", "traced as a number"]),
        ([PRODUCT], "batch", profile(8, 4, 8), ["min (8, 8), opt (4, 8), max (8, 8) for x", "min ≤ opt ≤ max"]),
        ([PRODUCT], "batch", profile(9, 9, 8), ["min ≤ opt ≤ max"]),
        ([PRODUCT], "batch", profile(1, 8, 8, width=9), ["dim 1 of x is fixed at 8", "wants 9 to 9"]),
        ([PRODUCT], "batch", profile(1, 8, 8, name="z"), ["the graph reads x", "profile fixed has z"]),
        ([CONTRIB], "batch", profile(1, 8, 8), ["com.microsoft.SimplifiedLayerNormalization", "ONNX alone"]),
        ([BRANCH], "batch", profile(1, 8, 8), ["com.microsoft.SimplifiedLayerNormalization", "ONNX alone"]),
        (
            [helper.make_node("Invented", ["x"], ["y"], name="it")],
            "batch",
            profile(1, 8, 8),
            ["node 0 it (Invented)", "fix: choose"],
        ),
        ([helper.make_node("Bernoulli", ["x"], ["y"], name="it")], "batch", profile(1, 8, 8), ["(Bernoulli)"]),
        ([UNEQUAL], "batch", profile(1, 8, 8), ["node 0 it (Gemm)"]),
    ],
)
def test_what_cannot_be_built_is_told_with_its_stage_and_cause(
    tmp_path: Path, nodes: list[onnx.NodeProto], batch: str | int, given: Profile, words: list[str]
) -> None:
    graph = write(tmp_path / "model.onnx", nodes, batch=batch, domain="com.microsoft")
    with pytest.raises(BuildError) as refused:
        build_plan(trt, graph, "connector", [given], SETTINGS)
    assert [word for word in ["connector: ", *words] if word not in str(refused.value)] == []


def test_a_cause_that_tensorrt_finds_is_told_in_its_own_words(graph: Path) -> None:
    turing = Settings(optimization_level=1, workspace_bytes=1 << 28, tf32=False, sms=(75,))
    with pytest.raises(
        BuildError, match=r"connector: TensorRT \S+ builds no engine of model.onnx: .*not supported.*fix: choose"
    ):
        build_plan(trt, graph, "connector", [profile(1, 8, 8)], turing)


def test_nodes_of_subgraphs_are_counted(tmp_path: Path) -> None:
    inner = helper.make_graph([PRODUCT], "then", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    branch = helper.make_node("If", ["yes"], ["y"], then_branch=inner, else_branch=inner)
    assert check_operators(write(tmp_path / "model.onnx", [branch]), "connector") == 3


def test_every_node_of_a_graph_is_asked_for(graph: Path, tmp_path: Path) -> None:
    check_supported(trt, graph, "connector")
    bad = write(tmp_path / "bad.onnx", [helper.make_node("Bernoulli", ["x"], ["y"], name="it")])
    with pytest.raises(BuildError, match=r"connector: TensorRT does not run all of bad.onnx: node 0 it \(Bernoulli\)"):
        check_supported(trt, bad, "connector")


def test_a_random_sample_has_the_shapes_and_types_of_one_row(graph: Path) -> None:
    (array,) = random_sample(graph, profile(1, 8, 8)).values()
    assert (array.shape, array.dtype) == ((1, WIDTH), np.float32)
