"""What several rooms' tests share: one random checkpoint and its export for the whole session."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from xdist.remote import Producer

from tests.workers import Scheduling, place_of

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=place_of)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    return Scheduling(config, log) if config.option.dist == "loadfile" else None


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a random LLaVA in the hub's layout (tests/tiny_llava.py). Read only: copy it to change it."""
    import torch

    from tests.tiny_llava import build_tiny_llava

    torch.set_num_threads(1)
    return build_tiny_llava(tmp_path_factory.mktemp("tiny") / "checkpoint")


@pytest.fixture(scope="session")
def tiny_export(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Deployment folder of `tiny_checkpoint`: deployment.toml, checkpoint/, model_repository/. Read only."""
    from export.repository import export_checkpoint

    out = tmp_path_factory.mktemp("tiny") / "tiny"
    export_checkpoint(tiny_checkpoint, out)
    return out


@pytest.fixture(scope="session")
def drawn_export(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], tuple[Path, Path]]:
    """Checkpoint of a kind of tests/tiny_diffusers.py, and its deployment folder by the command. Read only."""
    from export.__main__ import main
    from tests.tiny_diffusers import KINDS

    capture = request.config.pluginmanager.getplugin("capturemanager")

    @functools.cache
    def export(kind: str) -> tuple[Path, Path]:
        folder = tmp_path_factory.mktemp(kind)
        checkpoint, out = KINDS[kind](folder / "checkpoint"), folder / "Drawn one"
        with capture.global_and_fixture_disabled():
            assert main([str(checkpoint), "--out", str(out)]) == 0
        return checkpoint, out

    return export
