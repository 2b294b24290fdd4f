"""Triton's rate limiter as configs/gpu.pbtxt and the launcher use it, on toys: who waits holds up nobody else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tritonclient.grpc import InferenceServerClient, InferInput

from proteus.configs_gpu import BEHIND_OTHERS
from proteus.launcher import Repository, Server
from proteus.launcher.gpu_host import GpuHost
from proteus.launcher.installation import Installation
from tests.server import toys

SLOW_S = 0.6
SLOW = toys.ADD_ONE.replace("requests):\n", f"requests):\n        import time\n        time.sleep({SLOW_S})\n", 1)
PRIORITIES = {"stage": BEHIND_OTHERS, "rude": 1}  # 1 is Triton's default


class Limited(GpuHost):
    """A rate limiter without GPUs: all instances are of device 0. Each kind of stage has one resource."""

    def arguments(self) -> list[str]:
        return ["--rate-limit=execution_count", *(f"--rate-limit-resource={name}:1:0" for name in PRIORITIES)]

    def check(self, installation: Installation) -> list[str]:
        return []


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = toys.write_python_model(tmp_path_factory.mktemp("limited"), "door")
    for name, priority in PRIORITIES.items():
        toys.write_python_model(folder, name, SLOW)
        limit(folder / name / "config.pbtxt", name, priority)
    host = Limited(deployment=None, gpu=None, models=())  # type: ignore[arg-type]
    with Server(Repository(path=folder, gpu=host)) as running:
        for name in ("stage", "stage", "rude", "rude", *["door"] * 12):  # each instance once: what never ran goes first
            ask(running, name)
        yield running


def limit(file: Path, resource: str, priority: int) -> None:
    limiter = f'rate_limiter {{ resources [ {{ name: "{resource}" count: 1 }} ] priority: {priority} }}'
    file.write_text(file.read_text().replace("count: 2", f"count: 2 {limiter}"))


def ask(server: Server, model: str) -> float:
    """Seconds until the answer."""
    made = InferInput("x", [1], "FP32")
    made.set_data_from_numpy(np.ones(1, dtype=np.float32))
    begun = time.monotonic()
    with InferenceServerClient(server.ports.grpc_url) as client:
        client.infer(model, [made])
    return time.monotonic() - begun


@pytest.mark.parametrize(("stage", "passes"), [("stage", True), ("rude", False)])
def test_a_door_passes_a_stage_that_waits_by_our_priority_and_not_by_tritons(
    server: Server, stage: str, passes: bool
) -> None:
    """Triton looks only at the head of all that wait: with its default, the door waits for what it needs nothing of."""
    with ThreadPoolExecutor() as threads:
        stages = [threads.submit(ask, server, stage) for _ in range(2)]
        time.sleep(SLOW_S / 6)  # one runs, the other waits for what it holds
        door_s = ask(server, "door")
        assert max(done.result() for done in stages) > 1.8 * SLOW_S, "one at a time, with two instances"
    assert (door_s < SLOW_S / 2) == passes
