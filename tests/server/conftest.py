"""The real server that the tests of this folder share, and small things around it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import sleep

import pytest
import tritonclient.grpc

from proteus.launcher import Server
from proteus.launcher.processes import is_alive

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
DEMO = ROOT / "deployments" / "demo.toml"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.server)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Serves the demo deployment for the whole session. A test that kills a part of it waits until it is ready."""
    with Server(DEMO, log=tmp_path_factory.mktemp("server") / "server.log") as running:
        yield running


@pytest.fixture(scope="session")
def draw_deployment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Deployment file of random weights that only draw, as `python -m export` makes it of a diffusers folder."""
    from tests import tiny_diffusers

    folder = tmp_path_factory.mktemp("draw")
    tiny_diffusers.sd15(folder / "sd15")
    command = [sys.executable, "-m", "export", str(folder / "sd15"), "--out", str(folder / "out")]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder / "out" / "deployment.toml"


@pytest.fixture(scope="session")
def draw_server(draw_deployment: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Serves it for the whole session."""
    with Server(draw_deployment, log=tmp_path_factory.mktemp("draw_server") / "server.log") as running:
        yield running


@pytest.fixture
def kill_stub(server: Server) -> Callable[[str], None]:
    """Kills one backend stub of a model and gives back when it is dead; the launcher then restarts the server."""

    def kill(model: str) -> None:
        pid = server.stub_pids()[model][0]
        os.kill(pid, signal.SIGKILL)
        while is_alive(pid):
            sleep(0.005)

    return kill


@pytest.fixture
def grpc_client(server: Server) -> Iterator[tritonclient.grpc.InferenceServerClient]:
    """Triton's own gRPC client, connected to the shared server."""
    with tritonclient.grpc.InferenceServerClient(server.ports.grpc_url) as client:
        yield client


@pytest.fixture
def http_url(server: Server) -> str:
    """Where the shared server speaks HTTP, `http://host:port`."""
    return f"http://{server.ports.http_url}"
