"""Programs of torch.export: what their modules compute, at batches and sizes other than those that were traced."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from export.parity import ParityError
from export.torch_program import export_programs, noise_for, save_program, torch_graphs
from proteus.deployment import DeploymentError
from proteus.torch_session import TorchProgram
from tests import tiny_diffusers
from tests.tiny_llava import build_tiny_llava

KINDS: dict[str, Callable[[Path], Path]] = {
    "llava": build_tiny_llava,
    "sd15": tiny_diffusers.sd15,
    "sd3": tiny_diffusers.sd3,
    "flux": tiny_diffusers.flux,
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_program_of_every_family_computes_what_its_module_does(kind: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    for graph in torch_graphs(KINDS[kind](tmp_path / "checkpoint"), lambda _: None):
        path = tmp_path / f"{graph.name}.pt2"
        save_program(graph, path)
        program = TorchProgram(path, threads=1)
        assert program.inputs == tuple(port.name for port in graph.inputs)
        for batch, turned in ((1, False), (4, True)):
            feed = list(noise_for(graph, batch, turned=turned))
            tensors = [torch.from_numpy(array) for array in feed]
            nested = [tensors[: len(tensors) - 1], tensors[-1]] if graph.name == "text_encoder" else tensors
            with torch.no_grad():
                wanted = graph.module(*nested)
            wanted = wanted if isinstance(wanted, tuple) else (wanted,)
            for got, want in zip(program.run(feed), wanted, strict=True):
                assert got.shape == want.shape
                assert np.allclose(got, want.numpy(), rtol=0, atol=1e-5 * max(1.0, float(want.abs().max())))


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_programs_are_written_beside_the_graphs_that_they_were_compared_with(
    tiny_checkpoint: Path, tiny_export: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_export, tmp_path / "served")
    before = files(folder)
    programs = export_programs(folder / "deployment.toml", checkpoint=tiny_checkpoint)
    added = files(folder).keys() - before.keys()
    assert added == {f"model_repository/{model}/1/model.pt2" for model in ("vision_encoder", "connector")}
    assert all(program.max_abs_diff <= 1e-4 * program.scale for program in programs)


def test_programs_of_another_checkpoint_than_the_graphs_are_not_written(
    tiny_checkpoint: Path, tiny_export: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_export, tmp_path / "served")
    build_tiny_llava(tmp_path / "checkpoint", seed=5)
    before = files(folder)
    with pytest.raises(ParityError, match="vision_encoder of torch"):
        export_programs(folder / "deployment.toml", checkpoint=tmp_path / "checkpoint")
    (folder / "model_repository/connector/1/model.onnx").unlink()
    with pytest.raises(DeploymentError, match=r"connector.1.model.onnx is missing; fix: export it first"):
        export_programs(folder / "deployment.toml", checkpoint=tiny_checkpoint)
    assert files(folder).keys() == before.keys() - {"model_repository/connector/1/model.onnx"}
