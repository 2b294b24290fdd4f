"""Graphs run on this CPU: float32 with every value's peak watched, and a typed graph as if its precision were here.

The CPU lacks most operators in low precisions. So a typed graph computes in float32, and each value that is low in it
is rounded to its precision and back; products are summed in float32. TensorRT may sum those of float16 in float16, and
round a value less often where it fuses: what comes of it the built engine's own comparison tells, on the GPU.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from numpy.typing import NDArray

from export.precision_graph import FLOAT, save

LOW = frozenset({ir.DataType.FLOAT16, ir.DataType.BFLOAT16})
Sample = Mapping[str, NDArray[np.generic]]
Outputs = dict[str, NDArray[np.generic]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """The float32 graph on all samples."""

    peaks: Mapping[str, float]  # largest magnitude of each float that is given or computed, by name; of NaN: infinity
    outputs: tuple[Outputs, ...]  # of each sample


def run_watched(path: Path, samples: Sequence[Sample], threads: int) -> Watched:
    model = ir.load(path)
    outputs = [str(value.name) for value in model.graph.outputs]
    watched = _watch(model)
    peaks = dict.fromkeys(watched, 0.0)
    answers: list[Outputs] = []
    with _session(model, threads) as session:
        for sample in samples:
            answer = dict(zip(outputs + list(watched.values()), session.run(None, dict(sample)), strict=True))
            answers.append({name: answer[name] for name in outputs})
            for name, peak in watched.items():
                peaks[name] = max(peaks[name], float(answer[peak]))
    return Watched(peaks=peaks, outputs=tuple(answers))


def run_typed(path: Path, samples: Sequence[Sample], threads: int) -> tuple[Outputs, ...]:
    """The outputs of a graph in a low precision, of each sample."""
    model = ir.load(path)
    emulate(model)
    names = [str(value.name) for value in model.graph.outputs]
    with _session(model, threads) as session:
        return tuple(dict(zip(names, session.run(names, dict(sample)), strict=True)) for sample in samples)


def _watch(model: ir.Model) -> dict[str, str]:
    """Adds an output with the largest magnitude of each float, infinity where it holds a NaN; by the float's name.

    A maximum on its own would pass over a NaN, wherever it stands but in the first place.
    """
    graph = model.graph
    infinity = ir.Value(name="watch_infinity", type=ir.TensorType(FLOAT), shape=ir.Shape(()))
    infinity.const_value = ir.Tensor(np.asarray(np.inf, np.float32), name=infinity.name)
    graph.register_initializer(infinity)
    values = [*graph.inputs, *(value for node in graph for value in node.outputs)]
    watched: dict[str, str] = {}
    for value in [value for value in values if value.dtype == FLOAT and value.name]:
        size = ir.node("Abs", [value], name=f"watch_{value.name}")
        is_nan = ir.node("IsNaN", [value], name=f"is_nan_{value.name}")
        seen = ir.node("Where", [is_nan.outputs[0], infinity, size.outputs[0]], name=f"seen_{value.name}")
        peak = ir.node("ReduceMax", [seen.outputs[0]], {"keepdims": 0}, name=f"peak_{value.name}")
        for node, what in ((size, "magnitude"), (is_nan, "is_nan"), (seen, "seen"), (peak, "peak")):
            node.outputs[0].name = f"{value.name}_{what}"
        peak.outputs[0].dtype, peak.outputs[0].shape = FLOAT, ir.Shape(())
        graph.extend((size, is_nan, seen, peak))
        graph.outputs.append(peak.outputs[0])
        watched[str(value.name)] = str(peak.outputs[0].name)
    return watched


def emulate(model: ir.Model) -> None:
    """Every low value becomes float32 and is rounded where it is made; weights were rounded when they were stored."""
    graph = model.graph
    for weight in list(graph.initializers.values()):
        if weight.dtype in LOW:
            array = weight.const_value.numpy().astype(np.float32)
            weight.const_value = ir.Tensor(array, name=weight.name)
            weight.dtype = FLOAT
    for node in list(graph):
        for value in node.outputs:
            if value.dtype in LOW:
                _round(graph, node, value)


def _round(graph: ir.Graph, node: ir.Node, value: ir.Value) -> None:
    low, readers = value.dtype, list(value.uses())
    down = ir.node("Cast", [value], {"to": int(low)}, name=f"round_{value.name}")
    up = ir.node("Cast", [down.outputs[0]], {"to": int(FLOAT)}, name=f"widen_{value.name}")
    down.outputs[0].name, up.outputs[0].name = f"{value.name}_rounded", f"{value.name}_widened"
    down.outputs[0].dtype, up.outputs[0].dtype = low, FLOAT
    graph.insert_after(node, (down, up))
    value.dtype = FLOAT
    if node.op_type == "Cast":
        node.attributes["to"] = ir.AttrInt64("to", int(FLOAT))
    for reader, index in readers:
        reader.replace_input_with(index, up.outputs[0])


@contextmanager
def _session(model: ir.Model, threads: int) -> Iterator[ort.InferenceSession]:
    """Not optimised: what rounds would be taken out as doing nothing."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        save(model, path)
        yield ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
