from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from proteus.deployment import Deployment
from proteus.launcher import layout
from proteus.launcher.command import CLOSED, command
from proteus.launcher.gpu_host import GpuHost
from proteus.launcher.installation import Installation
from proteus.launcher.ports import Ports
from proteus.launcher.repository import Repository
from proteus.limits_gpu import LOOPBACK
from tests.changed_deployment import changed

DEMO = Path(__file__).parents[2] / "deployments" / "demo.toml"
RATE_LIMIT = ["--rate-limit=execution_count", "--rate-limit-resource=encode:2:0"]


def command_of(
    wheel: Installation,
    *,
    models: Sequence[str] = (),
    response_cache_bytes: int = 0,
    host: str = LOOPBACK,
    gpu: GpuHost | None = None,
) -> list[str]:
    return command(
        wheel,
        repository=Path("/models"),
        models=models,
        backends=Path("/backends"),
        ports=Ports(http=1, grpc=2, metrics=3, host=host),
        response_cache_bytes=response_cache_bytes,
        shm_prefix="mine",
        gpu=gpu,
    )


@pytest.mark.parametrize("host", [LOOPBACK, "0.0.0.0", "10.1.2.3"])
def test_every_port_is_bound_to_the_address_that_is_given(wheel: Installation, host: str) -> None:
    line = command_of(wheel, host=host)
    for name in ("http", "grpc", "metrics"):
        assert f"--{name}-address={host}" in line


def test_a_plain_server_has_no_cache_and_loads_all_that_is_in_the_repository(wheel: Installation) -> None:
    line = command_of(wheel)
    assert "--backend-config=python,shm-region-prefix-name=mine" in line
    assert "--grpc-infer-allocation-pool-size=0" in line, "no request's memory is kept when it has ended"
    assert not any("cache" in argument for argument in line)
    assert not any("load" in argument for argument in line)


def test_the_response_cache_is_asked_for_when_it_has_a_size(wheel: Installation) -> None:
    assert "--cache-config=local,size=1024" in command_of(wheel, response_cache_bytes=1024)


def test_the_models_named_are_loaded_and_nobody_can_change_that(wheel: Installation) -> None:
    """To load only some, Triton has to allow clients to load and unload: a key that nobody knows forbids it."""
    assert CLOSED.split(",") == ["model-repository", "shared-memory", "logging", "trace"]
    first, second = (command_of(wheel, models=("chat", "llm")) for _ in range(2))
    assert {"--model-control-mode=explicit", "--load-model=chat", "--load-model=llm"} <= set(first)
    for option in ("--http-restricted-api", "--grpc-restricted-protocol"):
        keys = {argument for argument in (*first, *second) if argument.startswith(f"{option}={CLOSED}:")}
        assert len(keys) == 2, "another one for each server"


@pytest.mark.parametrize(
    ("hardware", "pool", "wanted"),
    [
        ("cpu", "all", ["--allow-gpu-metrics=false", "--pinned-memory-pool-byte-size=0"]),
        ("gpu", "all", RATE_LIMIT),
        ("gpu", "encoder", RATE_LIMIT),
        ("gpu", "draw", RATE_LIMIT),
    ],
)
def test_options_are_those_of_the_hardware(wheel: Installation, hardware: str, pool: str, wanted: list[str]) -> None:
    repository = Repository.of(DEMO, pool=pool, hardware=hardware)  # type: ignore[arg-type]
    line = command_of(wheel, models=repository.models, gpu=repository.gpu)
    common = ["--model-config-name=gpu", "--allow-gpu-metrics=true", "--pinned-memory-pool-byte-size=268435456"]
    assert [argument for argument in line if argument.startswith("--rate-limit")] == (
        wanted if hardware == "gpu" else []
    )
    assert (set(common) <= set(line)) is (hardware == "gpu")
    assert set(wanted) <= set(line)


def test_a_server_without_media_stages_limits_nothing(wheel: Installation) -> None:
    """The limiter costs every execution a look at all that wait."""
    host = GpuHost.of(Deployment.load(DEMO), ("chat", "llm"))
    assert not any("rate-limit" in argument for argument in command_of(wheel, gpu=host))


def test_an_execution_of_tensorrt_is_counted_until_the_device_has_done_it(wheel: Installation) -> None:
    """By default the backend hands an instance back while another one is free: a stage of two would count for none."""
    option = "--backend-config=tensorrt,execution-policy=BLOCKING"
    for pool, changes, wanted in (
        ("all", {}, True),
        ("encoder", {"gpu.vision_encoder.runtime": "torch"}, True),
        ("encoder", {"gpu.vision_encoder.runtime": "torch", "gpu.connector.runtime": "torch"}, False),
    ):
        repository = Repository.of(changed(changes), pool=pool, hardware="gpu")  # type: ignore[arg-type]
        assert (option in command_of(wheel, gpu=repository.gpu)) is wanted
    assert option not in command_of(wheel)


def test_every_option_is_known_to_the_embedded_server(wheel: Installation) -> None:
    """One that it does not know would keep it from starting."""
    embedded = Installation.find()
    environment = layout.environment(embedded, os.environ)
    help_text = subprocess.run(
        [embedded.tritonserver, "--help"], env=environment, capture_output=True, text=True
    ).stderr
    known = set(re.findall(r"^  (--[a-z-]+)", help_text, re.MULTILINE))
    host = GpuHost.of(Deployment.load(DEMO), ("chat", "vision_encoder"))
    line = command_of(wheel, models=("chat", "vision_encoder"), response_cache_bytes=1, gpu=host)
    assert {argument.partition("=")[0] for argument in line[1:]} - known == set()
