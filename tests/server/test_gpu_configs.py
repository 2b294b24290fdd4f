"""What the embedded server makes of configs/gpu.pbtxt: all but the backend and the GPUs that it has not."""

from __future__ import annotations

from pathlib import Path

import pytest

from proteus.deployment import Deployment
from proteus.launcher import LaunchFailed, Repository, Server
from proteus.launcher.gpu_host import GpuHost
from proteus.launcher.installation import Installation

DEMO = Path(__file__).parents[2] / "deployments" / "demo.toml"
GRAPHS = ("vision_encoder", "connector", "text_encoder", "vae_decoder")
MODELS = (*GRAPHS, "image_preprocess")


class Unchecked(GpuHost):
    def check(self, installation: Installation) -> list[str]:
        return []


def test_the_embedded_server_reads_them_and_misses_nothing_but_tensorrt(tmp_path: Path) -> None:
    deployment = Deployment.load(DEMO)
    assert deployment.gpu is not None
    host = Unchecked(deployment=deployment, gpu=deployment.gpu, models=MODELS)
    server = Server(Repository(path=deployment.repository_path, models=MODELS, gpu=host), log=tmp_path / "server.log")
    with pytest.raises(LaunchFailed) as caught:
        server.start()
    told = [line for line in str(caught.value).splitlines() if "failed to load" in line]
    assert {model for model in GRAPHS if any(f"'{model}'" in line for line in told)} == set(GRAPHS)
    assert all("unable to find backend library for backend 'tensorrt'" in line for line in told)
    assert "successfully loaded 'image_preprocess'" in (tmp_path / "server.log").read_text()
