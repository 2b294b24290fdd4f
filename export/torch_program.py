"""Programs of torch.export beside the ONNX files of a deployment: `<model>/1/model.pt2`, `denoiser/1/denoiser.pt2`.

They are traced from the modules that the ONNX graphs come from, and each is loaded as serving loads it and compared
with the ONNX file that it stands for, before any of them is installed.
"""

from __future__ import annotations

import copy
import json
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.export import Dim

from export.checkpoint import load_model, read_checkpoint
from export.diffusion_checkpoint import Parts, is_draw_checkpoint, load_parts, read_draw_checkpoint
from export.diffusion_graphs import DrawShape, draw_graphs, text_encoder
from export.onnx_graph import Graph, Port, graphs
from export.parity import Comparison, ParityError, compare, open_session
from proteus.deployment import Deployment, DeploymentError
from proteus.pt2_archive import PORTS
from proteus.torch_session import TorchProgram

Progress = Callable[[str], None]
BATCHES = (1, 3)  # none of them the one that was traced
MOST_IDS = 99  # every vocabulary is larger
PIXELS_OFF = 0.005  # of the values may be one off: a float on either side of a half
_KEPT_FACTS = ("val",)  # of a node; what else the tracer notes tells where and how the program was made


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One program that was written."""

    model: str  # as in the model repository
    path: Path
    num_bytes: int
    max_abs_diff: float  # against ONNX Runtime, of all outputs on the compared inputs
    scale: float  # of the output that differs by so much


def export_programs(
    deployment_path: Path, progress: Progress = lambda _: None, *, checkpoint: Path | None = None
) -> tuple[Program, ...]:
    """Write the programs of `checkpoint`, or of every checkpoint that the deployment file names where it is None.

    Raises UnsupportedCheckpoint, ParityError or DeploymentError, and then changes nothing.
    """
    deployment = Deployment.load(deployment_path)
    repository = deployment.repository_path
    folders = [checkpoint] if checkpoint is not None else list(_checkpoints(deployment))
    written: list[Program] = []
    with tempfile.TemporaryDirectory(prefix=".export-", dir=repository.parent) as folder:
        for graph in (graph for folder in folders for graph in torch_graphs(folder, progress)):
            written.append(_export(graph, Path(folder), repository, progress))
        for program in written:
            place = repository / program.path.relative_to(folder)
            program.path.replace(place)
    return tuple(replace(program, path=repository / program.path.relative_to(folder)) for program in written)


def _checkpoints(deployment: Deployment) -> Iterator[Path]:
    if deployment.reads:
        yield deployment.checkpoint_path
    if deployment.draws:
        yield deployment.drawing.checkpoint_path


def torch_graphs(checkpoint: Path, progress: Progress) -> Iterator[Graph]:
    """Those that torch can serve, one after the other; the language model is not among them."""
    progress(f"loading {checkpoint.name}")
    if not is_draw_checkpoint(checkpoint):
        yield from (graph for graph in graphs(load_model(read_checkpoint(checkpoint))) if graph.name != "decoder")
        return
    parts = load_parts(read_draw_checkpoint(checkpoint))
    for graph in draw_graphs(parts, DrawShape.of(parts)):
        yield replace(graph, module=_for_torch(graph, parts))


class Echoing(nn.Module):
    """As the ONNX graph's: a text encoder that hands back the cache key it was asked with."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: list[Tensor], cache_key: Tensor) -> tuple[Tensor, ...]:
        states = self.encoder(*input_ids)
        return (*(states if isinstance(states, tuple) else (states,)), cache_key.clone())


class Flat(nn.Module):
    """A graph's module, given all its tensors one after the other."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self.module = graph.module
        self.counts = [len(part) if isinstance(part, list) else None for part in graph.example]

    def forward(self, *tensors: Tensor) -> object:
        left = iter(tensors)
        parts = [next(left) if count is None else [next(left) for _ in range(count)] for count in self.counts]
        return self.module(*parts)


class UnetDenoiser(nn.Module):
    """diffusers' own blocks: torch fuses attention that is written as one operator."""

    def __init__(self, unet: nn.Module) -> None:
        super().__init__()
        self.unet = unet

    def forward(self, latents: Tensor, timestep: Tensor, text_states: Tensor) -> Tensor:
        return self.unet(latents, timestep, text_states, return_dict=False)[0]


def _for_torch(graph: Graph, parts: Parts) -> nn.Module:
    """The module of a graph, without the operators that only ONNX has."""
    if graph.name == "text_encoder":
        return Echoing(text_encoder(parts)).eval()
    if graph.name == "denoiser" and parts.checkpoint.kind.family == "unet":
        return UnetDenoiser(parts.denoiser).eval()
    if graph.name == "vae_decoder":
        graph.module.vae = _without(graph.module.vae, "encoder", "quant_conv")
    return graph.module


def _without(module: nn.Module, *names: str) -> nn.Module:
    """`module` without parts that it does not call: a program keeps every weight."""
    changed = copy.copy(module)
    changed._modules = {name: part for name, part in module._modules.items() if name not in names}
    return changed


def _export(graph: Graph, folder: Path, repository: Path, progress: Progress) -> Program:
    onnx_path = repository / graph.path
    if not onnx_path.is_file():
        raise DeploymentError(f"{onnx_path} is missing", fix="export it first: make export CHECKPOINT=folder")
    path = folder / graph.path.with_suffix(".pt2")
    path.parent.mkdir(parents=True)
    progress(f"tracing {graph.name} for torch")
    save_program(graph, path)
    progress(f"comparing {graph.name} with ONNX Runtime")
    worst = max(_compare(graph, path, onnx_path), key=lambda row: row.max_abs_diff / (row.scale or 1.0))
    return Program(
        model=graph.path.parts[0],
        path=path,
        num_bytes=path.stat().st_size,
        max_abs_diff=worst.max_abs_diff,
        scale=worst.scale,
    )


def save_program(graph: Graph, path: Path) -> None:
    """Trace one graph and write it, with nothing pickled in it and nothing that tells of this machine."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of the tracer, about its own parts
        program = torch.export.export(
            Flat(graph).eval(), tuple(_flat(graph.example)), dynamic_shapes=(_free_dims(graph.inputs),), strict=False
        )
    for node in list(program.graph.nodes):
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            program.graph.erase_node(node)  # it would refuse another device, and a lower precision
        for fact in set(node.meta) - set(_KEPT_FACTS):
            del node.meta[fact]
    program.graph_module.recompile()
    program._example_inputs = None  # they would be pickled
    program._guards_code = []  # they would be run as Python; the deployment file says which shapes there are
    ports = {"inputs": [port.name for port in graph.inputs], "outputs": [port.name for port in graph.outputs]}
    torch.export.save(program, path, extra_files={PORTS: json.dumps(ports)})


def _free_dims(ports: Sequence[Port]) -> tuple[dict[int, Any], ...]:
    """As the ONNX graph's."""
    return tuple({axis: Dim.DYNAMIC for axis, dim in enumerate(port.dims) if isinstance(dim, str)} for port in ports)


def _compare(graph: Graph, path: Path, onnx_path: Path) -> Iterator[Comparison]:
    program, session = TorchProgram(path, threads=1), open_session(onnx_path)
    names = [port.name for port in graph.outputs]
    for number, batch in enumerate(BATCHES):
        feed = dict(zip(program.inputs, noise_for(graph, batch, turned=bool(number)), strict=True))
        wants = session.run(names, feed)
        for name, got, want in zip(names, program.run(list(feed.values())), wants, strict=True):
            case = f"{name}, batch {batch}"
            if want.dtype == np.float32:
                yield compare(f"{graph.name} of torch", case, got, want)
            else:
                yield _compare_integers(f"{graph.name} of torch, {case}", got, want)


def _compare_integers(case: str, got: NDArray[Any], want: NDArray[Any]) -> Comparison:
    apart = np.abs(got.astype(np.int64) - want.astype(np.int64))
    if got.shape != want.shape or apart.max() > 1 or (apart > 0).mean() > PIXELS_OFF:
        raise ParityError(f"{case}: differs from ONNX Runtime by {apart.max()}", limit="1, and that seldom")
    return Comparison(graph=case, case=case, max_abs_diff=float(apart.max()), scale=255.0)


def noise_for(graph: Graph, batch: int, *, turned: bool) -> Iterator[NDArray[Any]]:
    """Noise of the shapes of the graph's example, of another batch; `turned`: height and width exchanged."""
    generator = np.random.default_rng(batch)
    for port, example in zip(graph.inputs, _flat(graph.example), strict=True):
        shape = _shape(port, example, batch, turned=turned)
        if example.dtype == torch.int64:
            yield generator.integers(1, MOST_IDS, shape)
        elif example.dtype == torch.uint8:
            yield generator.integers(0, 256, shape, dtype=np.uint8)
        elif port.name == "timestep":
            yield generator.uniform(1, 999, shape).astype(np.float32)
        else:
            yield generator.standard_normal(shape).astype(np.float32)


def _shape(port: Port, example: Tensor, batch: int, *, turned: bool) -> list[int]:
    sides = dict(zip(port.dims, example.shape, strict=True))
    other = {"height": "width", "width": "height"} if turned else {}
    return [batch if dim in ("batch", "rows") else sides[other.get(str(dim), dim)] for dim in port.dims]


def _flat(example: Sequence[Tensor | list[Tensor]]) -> list[Tensor]:
    return [tensor for part in example for tensor in (part if isinstance(part, list) else [part])]


# The tracer tells of every operator of other libraries that is not installed; none is used.
logging.getLogger("torch.export").setLevel(logging.ERROR)
