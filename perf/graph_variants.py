"""The language graph as it was, with one thing after the other taken back, and in fewer bits.

Each function takes the exported decoder.onnx, as it is now, and edits it in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer

BLOCK = 32  # values that share a scale: rows of every weight of the demo are multiples of it


def unpack_qkv(model: onnx.ModelProto) -> None:
    """Three projections instead of one."""
    for node in _of(model, "GroupQueryAttention"):
        product = _writer(model, node.input[0])
        heads = {attribute.name: attribute.i for attribute in node.attribute}
        width = _weight(model, product).shape[1] // (heads["num_heads"] + 2 * heads["kv_num_heads"])
        widths = [heads["num_heads"] * width, heads["kv_num_heads"] * width, heads["kv_num_heads"] * width]
        node.input[:3] = _split_product(model, product, widths)


def pack_gate_up(model: onnx.ModelProto) -> None:
    """One projection and a split instead of two."""
    products = {node.input[1]: node for node in _of(model, "MatMul")}
    for name, gate in products.items():
        if not name.endswith(".gate.weight"):
            continue
        up = products[name.replace(".gate.", ".up.")]
        weight, both = np.concatenate([_weight(model, gate), _weight(model, up)], axis=1), f"{gate.output[0]}_both"
        model.graph.initializer.append(numpy_helper.from_array(weight, f"{both}_weight"))
        product = helper.make_node("MatMul", [gate.input[0], f"{both}_weight"], [both])
        split = helper.make_node("Split", [both], [gate.output[0], up.output[0]], axis=-1, num_outputs=2)
        _replace(model, gate, [product, split])
        model.graph.node.remove(up)


def add_apart(model: onnx.ModelProto) -> None:
    """The sum before a normalisation as an operator of its own."""
    for node in _of(model, "SkipSimplifiedLayerNormalization"):
        total = node.output[3] if len(node.output) > 3 and node.output[3] else f"{node.output[0]}_sum"
        added = helper.make_node("Add", list(node.input[:2]), [total])
        epsilon = next(attribute.f for attribute in node.attribute if attribute.name == "epsilon")
        normed = helper.make_node(
            "SimplifiedLayerNormalization", [total, node.input[2]], [node.output[0]], axis=-1, epsilon=epsilon
        )
        _replace(model, node, [added, normed])


def split_embedding(model: onnx.ModelProto) -> onnx.ModelProto:
    """The lookup as a graph of its own, which is returned; `model` takes its output."""
    (lookup,) = [node for node in _of(model, "Gather") if node.input[1] == "input_ids"]
    (splice,) = _of(model, "ScatterND")
    (table,) = [tensor for tensor in model.graph.initializer if tensor.name == lookup.input[0]]
    width = table.dims[1]
    ids = next(port for port in model.graph.input if port.name == "input_ids")
    embeds = helper.make_tensor_value_info("inputs_embeds", TensorProto.FLOAT, ["batch", "sequence", width])
    own = helper.make_graph(
        [helper.make_node("Gather", [table.name, "input_ids"], ["inputs_embeds"])],
        "embedding",
        [ids],
        [embeds],
        [table],
    )
    ports = [embeds, *(port for port in model.graph.input if port.name.startswith(("past_", "seqlens", "total")))]
    model.graph.node.remove(lookup)
    model.graph.node.remove(splice)
    _rename(model, splice.output[0], "inputs_embeds")
    del model.graph.input[:]
    model.graph.input.extend(ports)
    return helper.make_model(own, opset_imports=model.opset_import, ir_version=model.ir_version)


def head_twice(model: onnx.ModelProto) -> None:
    """The table, which is the head too, a second time: transposed, for a plain product."""
    (head,) = _of(model, "Gemm")
    weight, name = _weight(model, head), "head_transposed"
    model.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(weight.T), name))
    _replace(model, head, [helper.make_node("MatMul", [head.input[0], name], list(head.output))])


def int8_blocks(model: onnx.ModelProto) -> onnx.ModelProto:
    """Weights in 8 bits, a scale for each BLOCK of them; activations in 8 bits within the operator."""
    settings = DefaultWeightOnlyQuantConfig(block_size=BLOCK, is_symmetric=True, accuracy_level=4, bits=8)
    quantizer = MatMulNBitsQuantizer(model, bits=8, block_size=BLOCK, is_symmetric=True, algo_config=settings)
    quantizer.process()
    return quantizer.model.model


def int8_dynamic(source: Path, target: Path) -> None:
    """Weights in 8 bits by column, activations in 8 bits by call."""
    kinds = ["MatMul", "Gemm"]
    quantize_dynamic(source, target, weight_type=QuantType.QInt8, per_channel=True, op_types_to_quantize=kinds)


def bf16_products(model: onnx.ModelProto) -> None:
    """Every product in bfloat16, between two casts."""
    for node in _of(model, "MatMul"):
        given, _, weight = node.input[0], node.input[1], _weight(model, node)
        packed = (np.ascontiguousarray(weight).view(np.uint32) >> 16).astype(np.uint16)
        name = f"{node.output[0]}_bf16"
        model.graph.initializer.append(
            helper.make_tensor(f"{name}_weight", TensorProto.BFLOAT16, weight.shape, packed.tobytes(), raw=True)
        )
        into = helper.make_node("Cast", [given], [f"{name}_in"], to=TensorProto.BFLOAT16)
        product = helper.make_node("MatMul", [f"{name}_in", f"{name}_weight"], [name])
        out = helper.make_node("Cast", [name], [node.output[0]], to=TensorProto.FLOAT)
        _replace(model, node, [into, product, out])


def _of(model: onnx.ModelProto, operator: str) -> list[NodeProto]:
    return [node for node in model.graph.node if node.op_type == operator]


def _writer(model: onnx.ModelProto, name: str) -> NodeProto:
    return next(node for node in model.graph.node if name in node.output)


def _weight(model: onnx.ModelProto, product: NodeProto) -> np.ndarray:
    return numpy_helper.to_array(next(t for t in model.graph.initializer if t.name == product.input[1]))


def _split_product(model: onnx.ModelProto, product: NodeProto, widths: Sequence[int]) -> list[str]:
    """One product for each part of the columns, in place of `product`; the names of their outputs."""
    parts = np.split(_weight(model, product), np.cumsum(widths)[:-1], axis=1)
    names = [f"{product.output[0]}_part{index}" for index in range(len(parts))]
    for name, part in zip(names, parts, strict=True):
        model.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(part), f"{name}_weight"))
    packed = next(tensor for tensor in model.graph.initializer if tensor.name == product.input[1])
    model.graph.initializer.remove(packed)
    _replace(
        model,
        product,
        [helper.make_node("MatMul", [product.input[0], f"{name}_weight"], [name]) for name in names],
    )
    return names


def _replace(model: onnx.ModelProto, node: NodeProto, by: Sequence[NodeProto]) -> None:
    place = list(model.graph.node).index(node)
    model.graph.node.remove(node)
    for offset, new in enumerate(by):
        model.graph.node.insert(place + offset, new)


def _rename(model: onnx.ModelProto, old: str, new: str) -> None:
    for node in model.graph.node:
        node.input[:] = [new if name == old else name for name in node.input]
