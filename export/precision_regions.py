"""Which nodes of a graph compute in a low precision: its matrix products, and between them what costs the fewest casts.

A cut through the graph, low on one side and float32 on the other, with as few values on it as there can be.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import networkx as nx
import onnx_ir as ir

PRODUCTS = frozenset({"MatMul", "Gemm", "Conv", "ConvTranspose"})
# Safe on either side: they move values, or are as exact as their inputs. Whatever has statistics, exponentials that are
# summed, or positions in it is not here, and stays float32.
# fmt: off
FOLLOWING = frozenset((
    "Add", "AveragePool", "Concat", "Expand", "Flatten", "Gather", "Gelu", "Identity", "LeakyRelu", "MaxPool",
    "Mul", "Neg", "Pad", "Relu", "Reshape", "Resize", "Sigmoid", "Slice", "Split", "Squeeze",
    "Sub", "Tanh", "Tile", "Transpose", "Unsqueeze", "Where",
))
# fmt: on
# They read a float without caring which one it is.
SHAPE_READERS = frozenset({"Shape", "Size"})
# Sines of large angles, as of timesteps, are lost with the bits of their arguments.
_ANGLES = frozenset({"Sin", "Cos"})
_LOW, _FLOAT = "low", "float32"


def float_inputs(node: ir.Node) -> Iterator[tuple[int, ir.Value]]:
    """(index, value) of the inputs that must be of the node's own precision."""
    for index, value in enumerate(node.inputs):
        is_fixed = node.op_type == "Resize" and index > 0  # its sizes are float32 by definition
        is_float = value is not None and value.dtype == ir.DataType.FLOAT
        if value is not None and is_float and not is_fixed and node.op_type not in SHAPE_READERS:
            yield index, value


def is_product(node: ir.Node) -> bool:
    return node.op_type in PRODUCTS


def low_nodes(graph: ir.Graph, kept: Collection[ir.Node]) -> set[ir.Node]:
    """The nodes to compute in the low precision; `kept` and what angles are made of are not among them."""
    nodes = [node for node in graph if node.outputs[0].dtype == ir.DataType.FLOAT or any(float_inputs(node))]
    pinned = {*kept, *_before_angles(nodes)}
    flow = nx.DiGraph()
    flow.add_nodes_from((_LOW, _FLOAT))
    cast_cost = len(nodes) + 1  # more than all preferences together
    for node in nodes:
        free = node not in pinned and node.outputs[0].dtype == ir.DataType.FLOAT
        if free and is_product(node):
            flow.add_edge(_LOW, node)
        elif free and node.op_type in FOLLOWING:
            flow.add_edge(_LOW, node, capacity=1)
        else:
            flow.add_edge(node, _FLOAT)
    for value in _values(graph, nodes):
        _add_casts(flow, graph, value, cast_cost)
    _, (low, _) = nx.minimum_cut(flow, _LOW, _FLOAT)
    return {node for node in nodes if node in low}


def _values(graph: ir.Graph, nodes: Collection[ir.Node]) -> Iterator[ir.Value]:
    """Every float that is computed or given; weights are stored in as many precisions as are read."""
    yield from (value for value in graph.inputs if value.dtype == ir.DataType.FLOAT)
    yield from (value for node in nodes for value in node.outputs if value.dtype == ir.DataType.FLOAT)


def _add_casts(flow: nx.DiGraph, graph: ir.Graph, value: ir.Value, cost: int) -> None:
    """One cast where the maker of a value and any of its readers are on different sides; nothing has a free end."""
    maker = value.producer() or _FLOAT
    readers: set[ir.Node | str] = {
        node for node, index in value.uses() if any(at == index for at, _ in float_inputs(node))
    }
    if value in graph.outputs:
        readers.add(_FLOAT)
    if not readers:
        return
    up, down = ("up", value), ("down", value)
    flow.add_edge(maker, up, capacity=cost)
    flow.add_edge(down, maker, capacity=cost)
    for reader in readers:
        flow.add_edge(up, reader)
        flow.add_edge(reader, down)


def _before_angles(nodes: Collection[ir.Node]) -> set[ir.Node]:
    """Sines, cosines, and all floats that their arguments are made of, up to a product."""
    found: set[ir.Node] = set()
    ahead = [node for node in nodes if node.op_type in _ANGLES]
    while ahead:
        node = ahead.pop()
        if node not in found and not is_product(node):
            found.add(node)
            ahead += [maker for _, value in float_inputs(node) if (maker := value.producer()) is not None]
    return found
