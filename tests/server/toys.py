"""Model repositories small enough to start in a second."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

ADD_ONE = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", tensor + 1)]) for tensor in tensors]
"""
BROKEN = """
class TritonPythonModel:
    def initialize(self, args):
        raise ValueError("the checkpoint has no tokenizer.json")
"""
ECHO = """
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ -1 ] } ]
instance_group [ { kind: KIND_CPU count: 2 } ]
"""
LOOK_UP = """
max_batch_size: 8
input [ { name: "index" data_type: TYPE_INT64 dims: [ 1 ] } ]
output [ { name: "square" data_type: TYPE_FP32 dims: [ 1 ] }, { name: "rows" data_type: TYPE_INT64 dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
dynamic_batching { max_queue_delay_microseconds: 200000 preferred_batch_size: [ 8 ] }
"""


def write_python_model(repository: Path, name: str, code: str = ADD_ONE) -> Path:
    """A model `x` -> `y` of the Python backend with two instances; gives the repository back."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(code)
    (repository / name / "config.pbtxt").write_text(f'name: "{name}"\nbackend: "python"\nmax_batch_size: 0\n{ECHO}')
    return repository


def write_onnx_model(repository: Path, name: str) -> Path:
    """A batched ONNX model that looks up squares of 0 to 9 and fails on every other `index` (B, 1).

    `rows` (B, 1) is the size of the batch that it ran in.
    """
    index = helper.make_tensor_value_info("index", TensorProto.INT64, ["B", 1])
    square = helper.make_tensor_value_info("square", TensorProto.FLOAT, ["B", 1])
    rows = helper.make_tensor_value_info("rows", TensorProto.INT64, ["B", 1])
    constants = [
        helper.make_tensor("squares", TensorProto.FLOAT, [10], np.arange(10.0) ** 2),
        helper.make_tensor("zero", TensorProto.INT64, [1], [0]),
        helper.make_tensor("one", TensorProto.INT64, [1], [1]),
    ]
    nodes = [
        helper.make_node("Gather", ["squares", "index"], ["square"]),
        helper.make_node("Shape", ["index"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["batch"]),
        helper.make_node("Concat", ["batch", "one"], ["column"], axis=0),
        helper.make_node("Expand", ["batch", "column"], ["rows"]),
    ]
    graph = helper.make_graph(nodes, name, [index], [square, rows], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    version = repository / name / "1"
    version.mkdir(parents=True)
    onnx.save(model, version / "model.onnx")
    (repository / name / "config.pbtxt").write_text(f'name: "{name}"\nbackend: "onnxruntime"\n{LOOK_UP}')
    return repository
