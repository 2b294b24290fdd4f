"""The folder that the Helm chart's script prepares, and a pod serves."""

from __future__ import annotations

import urllib.request
from pathlib import Path

from proteus.launcher import Server
from tests.docker.test_helm_scripts import prepared

WAITING = "nv_inference_pending_request_count"  # what the encoder pool is scaled by
MODELS = {"image_preprocess", "vision_encoder", "connector"}


def test_tritonserver_loads_the_prepared_folder(tmp_path: Path) -> None:
    with Server(prepared(tmp_path, "encoder"), pool="encoder", log=tmp_path / "server.log") as server:
        assert server.is_ready()
        assert set(server.stub_pids()) == MODELS
        with urllib.request.urlopen(server.ports.metrics_url, timeout=10) as told:
            waiting = [line for line in told.read().decode().splitlines() if line.startswith(WAITING + "{")]
    assert {model for model in MODELS if any(f'model="{model}"' in line for line in waiting)} == MODELS
