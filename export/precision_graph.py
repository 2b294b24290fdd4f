"""An ONNX graph in memory: read, written, and moved to a low precision node by node."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx_ir as ir
from onnx_ir.external_data import load_to_model

from export.onnx_graph import INLINE_LIMIT_BYTES
from export.precision_regions import SHAPE_READERS, float_inputs

FLOAT = ir.DataType.FLOAT


def save(model: ir.Model, path: Path) -> int:
    """Bytes of the file and, where its weights are too many for one, of `<file>.data` beside it."""
    weight_bytes = sum(weight.const_value.nbytes for weight in model.graph.initializers.values())
    beside = path.with_name(f"{path.name}.data")
    beside.unlink(missing_ok=True)
    is_split = weight_bytes > INLINE_LIMIT_BYTES
    if not is_split:
        load_to_model(model)  # or those that lie beside the file that it was read from would be looked for beside this
    ir.save(model, path, external_data=beside.name if is_split else None)
    return file_bytes(path)


def file_bytes(path: Path) -> int:
    beside = path.with_name(f"{path.name}.data")
    return path.stat().st_size + (beside.stat().st_size if beside.exists() else 0)


@dataclass(slots=True)
class Lowering:
    """Moves nodes of `graph` to the precision `dtype`; casts stand where a value is needed in the other one."""

    graph: ir.Graph
    dtype: ir.DataType
    num_casts: int = 0
    origins: dict[ir.Value, str] = field(default_factory=dict)  # names before, of what is cast or renamed
    _copies: dict[tuple[ir.Value, ir.DataType], ir.Value] = field(default_factory=dict)

    def move(self, nodes: Collection[ir.Node]) -> None:
        for node in list(self.graph):
            if node in nodes:
                for index, value in list(float_inputs(node)):
                    node.replace_input_with(index, self._in_precision(value))
                for value in node.outputs:
                    value.dtype = self.dtype if value.dtype == FLOAT else value.dtype
        for node in list(self.graph):
            if node in nodes:
                for value in [value for value in node.outputs if value.dtype == self.dtype]:
                    self._give_back(value, nodes)
        self.drop_unused()

    def drop_unused(self) -> None:
        """Weights that nobody reads any more."""
        for name, weight in list(self.graph.initializers.items()):
            if not weight.uses() and weight not in self.graph.outputs:
                del self.graph.initializers[name]

    def insert(self, maker: ir.Node | None, nodes: Sequence[ir.Node]) -> None:
        """After the node that makes what they read; before all where nobody does."""
        if maker is None:
            self.graph.insert_before(self.graph[0], nodes)
        else:
            self.graph.insert_after(maker, nodes)

    def constant(self, name: str, array: np.ndarray, dtype: ir.DataType) -> ir.Value:
        """A new weight; `array` is of numpy's type for `dtype`."""
        tensor = ir.Tensor(array, dtype=dtype, name=name)
        value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(array.shape), const_value=tensor)
        self.graph.register_initializer(value)
        return value

    def _in_precision(self, value: ir.Value) -> ir.Value:
        """The value itself where its own node was moved before; a weight stored anew; or a cast, once for all."""
        if value.is_initializer():
            return self._weight(value)
        return self._cast(value, self.dtype)

    def _weight(self, value: ir.Value) -> ir.Value:
        key = (value, self.dtype)
        if key not in self._copies:
            array = value.const_value.numpy().astype(self.dtype.numpy())
            self._copies[key] = self.constant(f"{value.name}_{self.dtype.short_name()}", array, self.dtype)
        return self._copies[key]

    def _cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        key = (value, dtype)
        if key in self._copies:
            return self._copies[key]
        name = f"{value.name}_{dtype.short_name()}"
        cast = ir.node("Cast", [value], {"to": int(dtype)}, name=f"cast_{name}")
        (copy,) = cast.outputs
        copy.name, copy.dtype = name, dtype
        self.insert(value.producer(), (cast,))
        self.origins[copy] = value.name or ""
        self.num_casts += 1
        self._copies[key] = copy
        return copy

    def _give_back(self, value: ir.Value, low: Collection[ir.Node]) -> None:
        """A float32 copy of what a moved node makes, for its other readers and for the graph's own outputs."""
        readers = [
            (node, index) for node, index in value.uses() if node not in low and node.op_type not in SHAPE_READERS
        ]
        is_output = value in self.graph.outputs
        if not readers and not is_output:
            return
        if is_output:
            wanted = self.origins[value] = str(value.name)
            value.name = f"{wanted}_{self.dtype.short_name()}"
        copy = self._cast(value, FLOAT)
        if is_output:
            copy.name, copy.shape = wanted, value.shape
            self.graph.outputs[list(self.graph.outputs).index(value)] = copy
        for node, index in readers:
            node.replace_input_with(index, copy)
