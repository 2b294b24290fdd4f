"""A deployment with graphs that are only bytes, and builds of them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from proteus.deployment import Deployment
from proteus.engines import STAGES, Engine, EngineStage, digest_of, graph_path, install, keep
from proteus.profiles import profiles_of, written
from tests.changed_deployment import DEMO

VERSION, SM = "11.4.0.1", 90


def demo_copy(folder: Path) -> Deployment:
    """The demo's, with the manifests and with graphs that are only bytes."""
    source = DEMO.parents[1]
    text = DEMO.read_text(encoding="utf-8").replace("../checkpoints", str(source / "checkpoints"))
    path = folder / "deployment.toml"
    path.write_text(text.replace("../model_repository", "model_repository"), encoding="utf-8")
    for model in ("llm", "denoiser"):
        manifest = folder / "model_repository" / model / "1" / "export.json"
        manifest.parent.mkdir(parents=True)
        manifest.write_bytes((source / "model_repository" / model / "1" / "export.json").read_bytes())
    for stage in STAGES:
        graph = graph_path(folder / "model_repository", stage)
        graph.parent.mkdir(parents=True, exist_ok=True)
        graph.write_bytes(f"graph of {stage}".encode())
    return Deployment.load(path)


def build(deployment: Deployment, stage: EngineStage, content: bytes = b"plan", **facts: Any) -> Path:
    """Keep one build; returns its folder."""
    repository = deployment.repository_path
    plan = repository / stage / "new.plan"
    plan.write_bytes(content)
    given = {
        "tensorrt_version": VERSION,
        "sm": SM,
        "precision": "fp16",
        "profiles": written(profiles_of(deployment, stage)),
        "onnx_sha256": digest_of(graph_path(repository, stage)),
        "plan_sha256": hashlib.sha256(content).hexdigest(),
        "plan_bytes": len(content),
        "built_at": "2026-11-30T08:00:00+00:00",
        "build_s": 1.5,
        "optimization_level": 3,
        "workspace_bytes": 1 << 32,
    }
    return keep(repository, plan, Engine(stage=stage, **given | facts))


def serve_all(deployment: Deployment, **facts: Any) -> None:
    install(deployment.repository_path, [build(deployment, stage, **facts) for stage in STAGES])
