from __future__ import annotations

import json
from pathlib import Path

import pytest

from export.__main__ import main
from tests.tiny_llava import build_tiny_llava


@pytest.fixture(scope="session")
def other_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything that `tiny_checkpoint` is not: other sizes, two selected layers, CLS kept, tied, one KV head, …"""
    return build_tiny_llava(
        tmp_path_factory.mktemp("other") / "checkpoint",
        image_size=40,
        patch_size=10,
        hidden=48,
        layers=1,
        heads=3,
        kv_heads=1,
        head_dim=32,
        vision_hidden=36,
        vision_layers=2,
        vision_feature_layer=[1, -1],
        select_strategy="full",
        tied=True,
        attention_bias=True,
        rope={"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0},
        context_tokens=128,
        seed=1,
    )


@pytest.fixture(scope="session")
def other_export(other_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made by the command itself."""
    out = tmp_path_factory.mktemp("other") / "Other one"
    assert main([str(other_checkpoint), "--out", str(out), "--json"]) == 0
    return out


@pytest.fixture(params=["tiny", "other"])
def exported(request: pytest.FixtureRequest) -> tuple[Path, Path]:
    """(checkpoint, deployment folder), once for each of the two sizes."""
    return request.getfixturevalue(f"{request.param}_checkpoint"), request.getfixturevalue(f"{request.param}_export")


@pytest.fixture
def manifest(exported: tuple[Path, Path]) -> dict[str, object]:
    return json.loads((exported[1] / "model_repository/llm/1/export.json").read_text())
