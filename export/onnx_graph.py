"""The three graphs of a LLaVA checkpoint, traced from thin wrappers around transformers' own modules.

B batch, N visual tokens of a picture, C width of the features, D width of the language model; language_graph.py has the
decoder's own letters. Everything is float32. Whether a graph is right is not known here: see parity.py.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir
import torch
from torch import Tensor, nn
from torch.export import Dim
from transformers import LlavaForConditionalGeneration

from export.language_graph import SlotDecoder

OPSET = 20
# The tracer warns of every torchvision operator that is not installed; none is used.
logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)
# A protobuf file ends at 2 GiB: from here on weights go to a file beside the graph.
INLINE_LIMIT_BYTES = 1_900_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """One input or output: its name and the name of each dim; a number is a fixed dim."""

    name: str
    dims: tuple[str | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """What `export_graph` needs to write one ONNX file."""

    name: str  # as in reports and errors
    path: Path  # relative to the model repository
    module: nn.Module
    example: tuple[Tensor | list[Tensor], ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


def no_clock(batch: Tensor) -> Tensor:
    """(B, 2) zeros: when this graph ran, as far as a graph can tell. A backend with a clock writes the times there."""
    return torch.zeros(batch.shape[0], 2, dtype=torch.int64)


class VisionEncoder(nn.Module):
    """Pixels to the selected hidden states, exactly as LlavaModel.get_image_features selects them."""

    def __init__(self, model: LlavaForConditionalGeneration) -> None:
        super().__init__()
        self.tower = model.model.vision_tower
        selected = model.config.vision_feature_layer
        self.layers = [selected] if isinstance(selected, int) else list(selected)
        self.first_row = 1 if model.config.vision_feature_select_strategy == "default" else 0

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, Tensor]:
        states = self.tower(pixel_values, output_hidden_states=True).hidden_states
        features = torch.cat([states[layer][:, self.first_row :] for layer in self.layers], dim=-1)  # (B, N, C)
        return features, no_clock(pixel_values)


class Connector(nn.Module):
    """Features to visual tokens."""

    def __init__(self, model: LlavaForConditionalGeneration) -> None:
        super().__init__()
        self.projector = model.model.multi_modal_projector

    def forward(self, image_features: Tensor) -> tuple[Tensor, Tensor]:
        return self.projector(image_features), no_clock(image_features)


def graphs(model: LlavaForConditionalGeneration) -> Iterator[Graph]:
    """The graphs of a model, one after the other."""
    vision, text = model.config.vision_config, model.config.text_config
    side, width, feature_width = (
        vision.image_size,
        text.hidden_size,
        model.model.multi_modal_projector.linear_1.in_features,
    )
    with torch.no_grad():
        encoder = VisionEncoder(model).eval()
        example = torch.zeros(2, vision.num_channels, side, side)
        visual_tokens = encoder(example)[0].shape[1]
    yield Graph(
        name="vision_encoder",
        path=Path("vision_encoder/1/model.onnx"),
        module=encoder,
        example=(example,),
        inputs=(Port(name="pixel_values", dims=("batch", vision.num_channels, side, side)),),
        outputs=(
            Port(name="image_features", dims=("batch", visual_tokens, feature_width)),
            Port(name="encoder_ns", dims=("batch", 2)),
        ),
    )
    yield Graph(
        name="connector",
        path=Path("connector/1/model.onnx"),
        module=Connector(model).eval(),
        example=(torch.zeros(2, visual_tokens, feature_width),),
        inputs=(Port(name="image_features", dims=("batch", visual_tokens, feature_width)),),
        outputs=(
            Port(name="visual_tokens", dims=("batch", visual_tokens, width)),
            Port(name="connector_ns", dims=("batch", 2)),
        ),
    )
    yield _decoder(model)


def _decoder(model: LlavaForConditionalGeneration) -> Graph:
    text = model.config.text_config
    decoder = SlotDecoder(model).eval()
    call = decoder.layers[0].call
    past = [torch.zeros(2, call.kv_heads, 11, call.head_dim) for _ in range(2 * len(decoder.layers))]
    slot_dims = ("batch", call.kv_heads, "context", call.head_dim)
    pairs = [(kind, layer) for layer in range(len(decoder.layers)) for kind in ("key", "value")]
    return Graph(
        name="decoder",
        path=Path("llm/1/decoder.onnx"),
        module=decoder,
        example=(
            torch.zeros(2, 3, dtype=torch.int64),
            torch.zeros(4, text.hidden_size),
            torch.zeros(4, 2, dtype=torch.int64),
            torch.full((2,), 2, dtype=torch.int32),
            torch.tensor(3, dtype=torch.int32),
            past,
        ),
        inputs=(
            Port(name="input_ids", dims=("batch", "sequence")),
            Port(name="visual_rows", dims=("rows", text.hidden_size)),
            Port(name="visual_places", dims=("rows", 2)),  # which row and position of input_ids each replaces
            Port(name="seqlens_k", dims=("batch",)),
            Port(name="total_len", dims=()),
            *(Port(name=f"past_{kind}_{layer}", dims=slot_dims) for kind, layer in pairs),
        ),
        outputs=(
            Port(name="logits", dims=("batch", text.vocab_size)),
            *(Port(name=f"present_{kind}_{layer}", dims=slot_dims) for kind, layer in pairs),
        ),
    )


def export_graph(graph: Graph, repository: Path, *, inline_limit_bytes: int = INLINE_LIMIT_BYTES) -> Path:
    """Trace one graph and write it under `repository`; returns the file.

    Weights of more than `inline_limit_bytes` go to `<file>.data` beside it.
    """
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
        warnings.simplefilter("ignore")  # of the tracer, about its own parts
        program = torch.onnx.export(
            graph.module,
            graph.example,
            dynamo=True,
            opset_version=OPSET,
            input_names=[port.name for port in graph.inputs],
            output_names=[port.name for port in graph.outputs],
            dynamic_shapes=_free_dims(graph),
            verbose=False,
        )
    model = program.model
    _clean(model, graph)
    path = repository / graph.path
    path.parent.mkdir(parents=True, exist_ok=True)
    weight_bytes = sum(value.const_value.nbytes for value in model.graph.initializers.values())
    beside = f"{path.name}.data" if weight_bytes > inline_limit_bytes else None
    ir.save(model, path, external_data=beside)
    return path


def _free_dims(graph: Graph) -> tuple[object, ...]:
    """The free axes of each input, nested as `graph.example` is."""
    ports = iter(graph.inputs)

    def axes(example: Tensor | list[Tensor]) -> object:
        if isinstance(example, list):
            return [axes(part) for part in example]
        return {axis: Dim.DYNAMIC for axis, dim in enumerate(next(ports).dims) if isinstance(dim, str)}

    return tuple(axes(part) for part in graph.example)


def _clean(model: ir.Model, graph: Graph) -> None:
    """Name the free dims, and drop what tells where and how the file was made (stack traces hold local paths)."""
    for value, port in zip([*model.graph.inputs, *model.graph.outputs], [*graph.inputs, *graph.outputs], strict=True):
        value.name = port.name
        value.shape = ir.Shape(port.dims)
    ends = {*model.graph.inputs, *model.graph.outputs}
    model.metadata_props.clear()
    model.graph.metadata_props.clear()
    for node in model.graph.all_nodes():
        node.metadata_props.clear()
        node.doc_string = None
        for value in node.outputs:
            value.metadata_props.clear()
            if value not in ends and not value.uses():
                value.name = ""  # or the runtime would compute it for nobody
            if value not in ends:
                value.shape = None  # the tracer's own names of free dims; the runtime infers it again
    for value in [*ends, *model.graph.initializers.values()]:
        value.metadata_props.clear()
