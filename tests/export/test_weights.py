"""What TensorRT-LLM reads by itself lies where the deployment file looks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from export.weights import bring_weights
from proteus.deployment import Deployment
from tests.changed_deployment import DEMO

PARTS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """As a hub's cache has it: names that are links to files elsewhere."""
    folder, blobs = tmp_path / "snapshot", tmp_path / "blobs"
    folder.mkdir()
    blobs.mkdir()
    for name in (*PARTS, "config.json"):
        (blobs / name).write_text(f"content of {name}")
        (folder / name).symlink_to(blobs / name)
    return folder


def served(tmp_path: Path, old: str = "", new: str = "") -> Deployment:
    path = tmp_path / "served" / "deployment.toml"
    (tmp_path / "served" / "checkpoint").mkdir(parents=True)
    text = DEMO.read_text(encoding="utf-8").replace('"../checkpoints/demo"', '"checkpoint"')
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    return Deployment.load(path)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_weights_are_linked_beside_the_texts(tmp_path: Path, checkpoint: Path) -> None:
    deployment = served(tmp_path)
    brought = bring_weights(checkpoint, deployment)
    assert names(deployment.checkpoint_path) == {path.name for path in brought} == set(PARTS)
    for path in brought:
        assert not path.is_symlink()
        assert os.path.samefile(path, checkpoint / path.name)


def test_another_disk_gets_copies(tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: Any) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", link)
    for path in bring_weights(checkpoint, served(tmp_path)):
        assert path.read_text() == f"content of {path.name}"
        assert not os.path.samefile(path, checkpoint / path.name)


def test_parts_of_an_earlier_export_are_gone(tmp_path: Path, checkpoint: Path) -> None:
    deployment = served(tmp_path)
    (deployment.checkpoint_path / "model-00003-of-00003.safetensors").touch()
    (deployment.checkpoint_path / "tokenizer.json").touch()
    bring_weights(checkpoint, deployment)
    assert names(deployment.checkpoint_path) == {*PARTS, "tokenizer.json"}


def test_weights_stay_until_all_new_ones_are_there(tmp_path: Path, checkpoint: Path) -> None:
    deployment = served(tmp_path)
    bring_weights(checkpoint, deployment)
    (checkpoint / PARTS[1]).unlink()
    (checkpoint / PARTS[1]).symlink_to(tmp_path / "blobs" / "gone")
    with pytest.raises(FileNotFoundError):
        bring_weights(checkpoint, deployment)
    assert names(deployment.checkpoint_path) == set(PARTS)


def test_nothing_is_brought_where_no_engine_reads_weights(tmp_path: Path, checkpoint: Path) -> None:
    deployment = served(tmp_path, 'runtime = "tensorrt_llm"', 'runtime = "onnxruntime"')
    assert bring_weights(checkpoint, deployment) == []
    assert names(deployment.checkpoint_path) == set()


def test_the_demo_reads_its_weights_where_they_are() -> None:
    deployment = Deployment.load(DEMO)
    before = names(deployment.checkpoint_path)
    assert bring_weights(deployment.checkpoint_path, deployment) == []
    assert names(deployment.checkpoint_path) == before
