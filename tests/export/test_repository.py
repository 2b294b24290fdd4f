"""One command from a checkpoint folder to a deployment folder, all or nothing."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

import export.repository as repository
from export.__main__ import main
from export.onnx_graph import Graph, export_graph, graphs
from proteus import configs
from proteus.deployment import Deployment
from proteus.gateway.gateway import Gateway
from proteus.manifest import Manifest
from tests.export.plant import spoil

pytestmark = pytest.mark.oracle


def test_deployment_folder_is_complete(exported: tuple[Path, Path]) -> None:
    _, out = exported
    deployment = Deployment.load(out / "deployment.toml")
    assert deployment.checkpoint_path == (out / "checkpoint").resolve()
    assert deployment.repository_path == (out / "model_repository").resolve()
    assert configs.stale(deployment) == []
    assert not list(out.rglob("*.safetensors"))
    assert not [path for path in (*out.parent.iterdir(), *out.iterdir()) if path.name.startswith(".export")]
    models = {path.parent.name for path in (out / "model_repository").glob("*/config.pbtxt")}
    assert models == {"chat", "llm", "image_tokens", "image_preprocess", "vision_encoder", "connector"}
    for model in models:
        assert (out / "model_repository" / model / "1").is_dir()


def test_a_gateway_serves_the_folder_and_writes_nothing_beside_it(exported: tuple[Path, Path]) -> None:
    _, out = exported
    deployment = Deployment.load(out / "deployment.toml")
    gateway = Gateway(deployment)
    assert set(gateway.models.readers) == {deployment.name, "auto"}
    assert gateway.settings.metering is not None
    assert (out / gateway.settings.metering.path).resolve() == out.resolve() / "var" / "metering.jsonl"


def test_manifest_states_what_was_exported(tiny_export: Path, other_export: Path) -> None:
    tiny, other = (Manifest.load(out / "model_repository") for out in (tiny_export, other_export))
    assert (tiny.image_size, tiny.visual_tokens, tiny.hidden_size, tiny.context_tokens) == (48, 9, 64, 512)
    assert (other.image_size, other.visual_tokens, other.hidden_size, other.context_tokens) == (40, 17, 48, 128)
    document = json.loads((other_export / "model_repository/llm/1/export.json").read_text())
    assert (document["num_layers"], document["num_kv_heads"], document["head_dim"]) == (1, 1, 32)
    assert set(document["parity"]) == {"vision_encoder", "connector", "decoder", "all together"}
    assert all(diff < 1e-3 for diff in document["parity"].values())


def test_context_of_the_deployment_fits_the_checkpoint(tiny_export: Path, other_export: Path) -> None:
    assert Deployment.load(tiny_export / "deployment.toml").llm.context_tokens == 512
    other = Deployment.load(other_export / "deployment.toml")
    assert (other.name, other.llm.context_tokens) == ("other-one", 128)


def test_tiers_of_the_deployment_take_a_picture_of_the_checkpoint(tiny_export: Path, other_export: Path) -> None:
    for export, visual_tokens in ((tiny_export, 9), (other_export, 17)):
        tiers = Deployment.load(export / "deployment.toml").tiers
        assert {tier.max_visual_tokens for _, tier in tiers} == {visual_tokens}


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exporter writes a wrong connector, and only the connector, to keep the test short."""

    def write_wrong(graph: Graph, folder: Path, *, inline_limit_bytes: int) -> Path:
        path = export_graph(graph, folder, inline_limit_bytes=inline_limit_bytes)
        return spoil(path, path)

    monkeypatch.setattr(repository, "graphs", lambda model: [g for g in graphs(model) if g.name == "connector"])
    monkeypatch.setattr(repository, "export_graph", write_wrong)


@pytest.mark.usefixtures("planted")
def test_mismatch_stops_the_command_and_leaves_nothing(
    tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tiny_checkpoint), "--out", str(tmp_path / "deep" / "out")]) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith("export_mismatch: connector, batch 1: differs from torch by ")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert not (tmp_path / "deep" / "out").exists()


@pytest.mark.usefixtures("planted")
def test_mismatch_leaves_an_earlier_export_as_it_was(tiny_checkpoint: Path, tiny_export: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(tiny_export, tmp_path / "out"))
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert main([str(tiny_checkpoint), "--out", str(out)]) == 2
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def prepare(out: Path, **lines: str) -> Path:
    """A deployment folder whose file differs from ours in some keys."""
    out.mkdir()
    text = (repository.DEMO.root / repository.DEMO.deployment).read_text()
    text = re.sub(r"(?m)^draw_checkpoint .*\n", "", text)  # what is exported here reads and does not draw
    text = text.replace("../checkpoints/demo", "checkpoint").replace("../model_repository", "model_repository")
    for old, new in lines.items():
        text = text.replace(f"{old} = ", f"{old} = {new} # ", 1)
    (out / "deployment.toml").write_text(text)
    return out


def test_own_deployment_file_is_kept(tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repository, "graphs", lambda model: [])
    monkeypatch.setattr(repository, "check_together", lambda folder, model: [])
    out = prepare(tmp_path / "out", name='"mine"', context_tokens="100")
    stale = [out / "model_repository/llm/1" / name for name in ("decoder.onnx.data", "embedding.onnx")]
    stale[0].parent.mkdir(parents=True)
    for path in stale:
        path.write_bytes(b"of an earlier export")
    text = (out / "deployment.toml").read_text()
    repository.export_checkpoint(tiny_checkpoint, out)
    assert (out / "deployment.toml").read_text() == text
    assert configs.stale(Deployment.load(out / "deployment.toml")) == []
    assert not any(path.exists() for path in stale)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            {"context_tokens": "1000"},
            "llm.context_tokens = 1000; limit: the checkpoint's max_position_embeddings = 512",
        ),
        ({"repository": '"elsewhere"'}, "repository = 'elsewhere'; limit: an export here writes checkpoint and model"),
        ({"cores": '"two"'}, "cores = 'two'"),
    ],
)
def test_deployment_file_that_does_not_fit_is_refused_first(
    lines: dict[str, str], message: str, tiny_checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = prepare(tmp_path / "out", **lines)
    assert main([str(tiny_checkpoint), "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "loading the weights" not in error
    assert [path.name for path in out.iterdir()] == ["deployment.toml"]


def test_another_checkpoint_never_goes_into_the_demo(tiny_checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tiny_checkpoint)]) == 2
    assert "fix: give a folder for the export: --out" in capsys.readouterr().err


def test_tables_name_every_comparison_and_file(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(repository, "graphs", lambda model: [g for g in graphs(model) if g.name == "connector"])
    monkeypatch.setattr(repository, "check_together", lambda folder, model: [])
    assert main([str(tiny_checkpoint), "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr()
    assert "batch 3" in printed.out
    assert "connector/1/model.onnx" in printed.out
    assert "tracing connector" in printed.err
