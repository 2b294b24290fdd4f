"""Denoisers for tests: the UNet of a tiny random checkpoint, and a graph so simple that its answers are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from diffusers import UNet2DConditionModel
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from export.onnx_graph import Graph, Port, export_graph
from export.torch_program import save_program
from proteus.manifest import DrawManifest
from tests.tiny_diffusers import sd15

CHANNELS, TOKENS, WIDTH, POOLED = 4, 20, 24, 6
CHECKPOINT = "checkpoint"  # in the folder of an exported UNet
SCHEDULER = {
    "_class_name": "DDIMScheduler",
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "num_train_timesteps": 1000,
    "prediction_type": "v_prediction",
    "steps_offset": 1,
    "set_alpha_to_one": False,
    "clip_sample": False,
}


def manifest_of(**changes: Any) -> DrawManifest:
    facts: dict[str, Any] = {
        "format": 1,
        "revision": "0" * 64,
        "family": "unet",
        "text_inputs": [],
        "text_tokens": TOKENS,
        "text_width": WIDTH,
        "pooled_width": 0,
        "latent_channels": CHANNELS,
        "vae_factor": 8,
        "size_multiple": 2,
        "prediction": "v_prediction",
        "scheduler": SCHEDULER,
        "embedded_guidance": False,
        "preview": [[0.0, 0.0, 0.0]] * (CHANNELS + 1),
    }
    return DrawManifest.model_validate(facts | changes)


class _Denoiser(nn.Module):
    def __init__(self, unet: UNet2DConditionModel) -> None:
        super().__init__()
        self.unet = unet

    def forward(self, latents: Tensor, timestep: Tensor, text_states: Tensor) -> Tensor:
        return self.unet(latents, timestep, text_states, return_dict=False)[0]


def unet_graph(checkpoint: Path) -> Graph:
    unet = UNet2DConditionModel.from_pretrained(checkpoint / "unet").eval()
    latents: tuple[str | int, ...] = ("rows", CHANNELS, "height", "width")
    return Graph(
        name="denoiser",
        path=Path("denoiser.onnx"),
        module=_Denoiser(unet),
        example=(torch.zeros(3, CHANNELS, 8, 12), torch.zeros(3), torch.zeros(3, TOKENS, WIDTH)),
        inputs=(
            Port(name="latents", dims=latents),
            Port(name="timestep", dims=("rows",)),
            Port(name="text_states", dims=("rows", TOKENS, WIDTH)),
        ),
        outputs=(Port(name="prediction", dims=latents),),
    )


def export_unet(folder: Path) -> Path:
    """`folder` with denoiser.onnx, and the checkpoint of random weights that it is of."""
    torch.set_num_threads(1)
    export_graph(unet_graph(sd15(folder / CHECKPOINT, prediction="v_prediction", tokens=TOKENS)), folder)
    return folder


def add_unet_program(folder: Path) -> Path:
    """denoiser.pt2 beside what `export_unet` wrote, of the same weights."""
    save_program(unet_graph(folder / CHECKPOINT), folder / "denoiser.pt2")
    return folder


class _Sum(nn.Module):
    def forward(
        self, latents: Tensor, timestep: Tensor, text_states: Tensor, pooled: Tensor, guidance: Tensor
    ) -> Tensor:
        of_row = timestep + text_states.sum((1, 2)) + pooled.sum(1) + guidance
        return latents + of_row[:, None, None, None]


def export_sum(folder: Path) -> Path:
    """`folder` with denoiser.onnx and denoiser.pt2, which add up all that is in a row: see save_sum."""
    save_sum(folder / "denoiser.onnx")
    latents: tuple[str | int, ...] = ("rows", CHANNELS, "height", "width")
    shapes = {"timestep": (), "text_states": (TOKENS, WIDTH), "pooled": (POOLED,), "guidance": ()}
    graph = Graph(
        name="denoiser",
        path=Path("denoiser.onnx"),
        module=_Sum(),
        example=(torch.zeros(3, CHANNELS, 4, 6), *(torch.zeros(3, *shape) for shape in shapes.values())),
        inputs=(
            Port(name="latents", dims=latents),
            *(Port(name=name, dims=("rows", *shape)) for name, shape in shapes.items()),
        ),
        outputs=(Port(name="prediction", dims=latents),),
    )
    save_program(graph, folder / "denoiser.pt2")
    return folder


def save_sum(path: Path) -> Path:
    """prediction = latents + timestep + sum(pooled) + guidance + sum(text_states), by row; it takes every input."""
    row_of = {"timestep": (), "pooled": (POOLED,), "guidance": (), "text_states": (TOKENS, WIDTH)}
    dims: dict[str, list[str | int]] = {"latents": ["rows", CHANNELS, "h", "w"]}
    nodes, total = [], "latents"
    for name, shape in row_of.items():
        dims[name] = ["rows", *shape]
        summed = name
        if shape:
            axes = numpy_helper.from_array(np.arange(1, 1 + len(shape)), f"{name}_axes")
            nodes.append(helper.make_node("Constant", [], [f"{name}_axes"], value=axes))
            nodes.append(helper.make_node("ReduceSum", [name, f"{name}_axes"], [f"{name}_sum"], keepdims=0))
            summed = f"{name}_sum"
        nodes.append(helper.make_node("Constant", [], [f"{name}_at"], value=numpy_helper.from_array(np.arange(1, 4))))
        nodes.append(helper.make_node("Unsqueeze", [summed, f"{name}_at"], [f"{name}_wide"]))
        output = "prediction" if name == "text_states" else f"{name}_total"
        nodes.append(helper.make_node("Add", [total, f"{name}_wide"], [output]))
        total = output
    ports = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in dims.items()}
    prediction = helper.make_tensor_value_info("prediction", TensorProto.FLOAT, dims["latents"])
    graph = helper.make_graph(nodes, "sum", list(ports.values()), [prediction])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def save_unlike_alone(path: Path) -> Path:
    """prediction = latents, whatever timestep and text_states are, and for a lone row 1e-6 more."""
    dims: dict[str, list[str | int]] = {
        "latents": ["rows", CHANNELS, "h", "w"],
        "timestep": ["rows"],
        "text_states": ["rows", TOKENS, WIDTH],
    }
    constants = {"zero": np.float32(0.0), "one": np.array([1]), "bit": np.float32(1e-6)}
    nodes = [
        helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(value)))
        for name, value in constants.items()
    ]
    nodes += [
        helper.make_node("ReduceSum", ["timestep"], ["times"], keepdims=0),
        helper.make_node("ReduceSum", ["text_states"], ["texts"], keepdims=0),
        helper.make_node("Add", ["times", "texts"], ["read"]),
        helper.make_node("Mul", ["read", "zero"], ["nothing"]),
        helper.make_node("Shape", ["latents"], ["rows_of"], start=0, end=1),
        helper.make_node("Equal", ["rows_of", "one"], ["is_lone"]),
        helper.make_node("Cast", ["is_lone"], ["lone"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["lone", "bit"], ["more"]),
        helper.make_node("Add", ["latents", "nothing"], ["same"]),
        helper.make_node("Add", ["same", "more"], ["prediction"]),
    ]
    ports = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in dims.items()}
    prediction = helper.make_tensor_value_info("prediction", TensorProto.FLOAT, dims["latents"])
    graph = helper.make_graph(nodes, "unlike_alone", list(ports.values()), [prediction])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path
