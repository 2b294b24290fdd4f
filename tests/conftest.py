"""What several rooms' tests share: one random checkpoint and its export for the whole session."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")


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
