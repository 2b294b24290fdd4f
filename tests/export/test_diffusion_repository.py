"""Models that draw and models that read in one deployment folder: whichever is exported leaves the other as it was."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import export.diffusion_repository as diffusion
import export.repository as repository
from export.__main__ import main
from export.diffusion_graphs import draw_graphs
from export.onnx_graph import Graph, export_graph, graphs
from proteus import configs
from proteus.deployment import Deployment
from tests import tiny_diffusers
from tests.export.plant import spoil

pytestmark = pytest.mark.oracle
DRAW_TABLES = "\n# Pictures out."


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_diffusers.sd15(tmp_path_factory.mktemp("sd15") / "checkpoint", tokens=24)


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`export_graph`, which takes seconds, but for graphs of equal weights: their files are copied."""
    folder = tmp_path_factory.mktemp("traced")

    def export_once(graph: Graph, repository: Path, *, inline_limit_bytes: int) -> Path:
        digest = hashlib.sha256(graph.name.encode())
        for name, weight in graph.module.state_dict().items():
            digest.update(name.encode() + weight.numpy().tobytes())
        kept = folder / digest.hexdigest()
        if not kept.exists():
            export_graph(graph, kept, inline_limit_bytes=inline_limit_bytes)
        shutil.copytree(kept, repository, dirs_exist_ok=True)
        return repository / graph.path

    return export_once


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, traced: Callable[..., Path]) -> None:
    """Traces the autoencoder and the connector alone and fits previews to few pictures, to keep the tests short."""
    monkeypatch.setattr("export.diffusion_preview.PICTURES", 50)
    monkeypatch.setattr(diffusion, "export_graph", traced)
    monkeypatch.setattr(repository, "export_graph", traced)
    monkeypatch.setattr(
        diffusion, "draw_graphs", lambda *given: [g for g in draw_graphs(*given) if g.name == "vae_decoder"]
    )
    monkeypatch.setattr(diffusion, "check_together", lambda *_: [])
    monkeypatch.setattr(repository, "graphs", lambda model: [g for g in graphs(model) if g.name == "connector"])
    monkeypatch.setattr(repository, "check_together", lambda *_: [])


def files(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(params=["with tables", "of before"])
def reading(request: pytest.FixtureRequest, tiny_export: Path, tmp_path: Path) -> Path:
    """A deployment folder that reads pictures; its file has tables of what draws, or was written before there were."""
    out = Path(shutil.copytree(tiny_export, tmp_path / "both"))
    if request.param == "of before":
        path = out / "deployment.toml"
        path.write_text(path.read_text().partition(DRAW_TABLES)[0])
        assert Deployment.load(path).draw is None
    return out


@pytest.mark.usefixtures("quick")
def test_models_that_draw_are_added_to_those_that_read(reading: Path, checkpoint: Path) -> None:
    before = files(reading)
    assert main([str(checkpoint), "--out", str(reading)]) == 0
    after = files(reading)
    kept = {path: content for path, content in before.items() if path != Path("deployment.toml")}
    assert {path: after[path] for path in kept} == kept
    deployment = Deployment.load(reading / "deployment.toml")
    assert (deployment.reads, deployment.draws) == (True, True)
    assert configs.stale(deployment) == []
    added = {path.parts[1] for path in after.keys() - before.keys() if path.parts[0] == "model_repository"}
    assert added == {"draw", "text_encoder", "denoiser", "vae_decoder"}


@pytest.mark.usefixtures("quick")
def test_models_that_read_are_added_to_those_that_draw(tiny_checkpoint: Path, checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "both"
    assert main([str(checkpoint), "--out", str(out)]) == 0
    before = files(out)
    assert main([str(tiny_checkpoint), "--out", str(out)]) == 0
    after = files(out)
    kept = {path: content for path, content in before.items() if path != Path("deployment.toml")}
    assert {path: after[path] for path in kept} == kept
    deployment = Deployment.load(out / "deployment.toml")
    assert (deployment.reads, deployment.draws, deployment.llm.context_tokens) == (True, True, 512)
    assert configs.stale(deployment) == []


@pytest.mark.usefixtures("quick")
def test_second_export_replaces_its_own_graphs_and_keeps_the_file(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main([str(checkpoint), "--out", str(out)]) == 0
    path = out / "deployment.toml"
    path.write_text(path.read_text().replace("max_steps = 100\n", "max_steps = 50\n"))
    text = path.read_text()
    stale = out / "model_repository/denoiser/1/denoiser.onnx.data"
    other = out / "model_repository/llm/1/decoder.onnx"
    for earlier in (stale, other):
        earlier.parent.mkdir(parents=True, exist_ok=True)
        earlier.write_bytes(b"of an earlier export")
    assert main([str(checkpoint), "--out", str(out)]) == 0
    assert path.read_text() == text and "max_steps = 50\n" in text
    assert (stale.exists(), other.exists()) == (False, True)


@pytest.mark.usefixtures("quick")
def test_mismatch_leaves_an_earlier_export_as_it_was(
    reading: Path,
    checkpoint: Path,
    traced: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def write_wrong(graph: Graph, folder: Path, *, inline_limit_bytes: int) -> Path:
        path = traced(graph, folder, inline_limit_bytes=inline_limit_bytes)
        return spoil(path, path)

    monkeypatch.setattr(diffusion, "export_graph", write_wrong)
    before = files(reading)
    assert main([str(checkpoint), "--out", str(reading)]) == 2
    assert "export_mismatch: vae_decoder, 1 of 8x8: differs from diffusers by " in capsys.readouterr().err
    assert files(reading) == before


@pytest.mark.usefixtures("quick")
def test_side_beyond_the_last_position_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint, out = tiny_diffusers.sd3(tmp_path / "sd3"), tmp_path / "out"
    assert main([str(checkpoint), "--out", str(out)]) == 0
    path = out / "deployment.toml"
    limit = Deployment.load(path).drawing.limits.max_side_px
    assert limit == 192  # 24 positions of 2 latents of 4 px
    path.write_text(path.read_text().replace("max_side_px = 192\n", "max_side_px = 200\n"))
    assert main([str(checkpoint), "--out", str(out)]) == 2
    assert "draw.max_side_px = 200; limit: 192 px" in capsys.readouterr().err


def test_another_checkpoint_never_goes_into_the_demo(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(checkpoint)]) == 2
    assert "serves checkpoints/draw, not" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("sample_size", "sizes", "batch", "workspace_bytes"), [(8, [], 8, 1 << 32), (64, ["512x512"], 4, 1 << 34)]
)
def test_fresh_file_asks_for_engines_that_build(
    sample_size: int, sizes: list[str], batch: int, workspace_bytes: int, tmp_path: Path
) -> None:
    """Of the demo's size, and of Stable Diffusion 1.5's, whose decoder needs more room, and which has 9 x 9 sizes."""
    kind, config = SimpleNamespace(family="unet"), SimpleNamespace(sample_size=sample_size)
    parts: Any = SimpleNamespace(checkpoint=SimpleNamespace(kind=kind), denoiser=SimpleNamespace(config=config))
    shape: Any = SimpleNamespace(vae_factor=8, size_multiple=8 if sample_size == 64 else 4, max_side=None)
    path = tmp_path / "deployment.toml"
    path.write_text(diffusion._fitted(diffusion.fresh_text(diffusion.DRAW_DEMO), parts, shape), encoding="utf-8")
    deployment = Deployment.load(path)
    assert deployment.gpu is not None
    assert (deployment.gpu.sizes, deployment.drawing.vae_decoder.max_batch) == (sizes, batch)
    assert deployment.gpu.workspace_bytes == workspace_bytes
