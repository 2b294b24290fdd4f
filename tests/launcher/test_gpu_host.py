from __future__ import annotations

import ctypes
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

from proteus import cuda_driver
from proteus.deployment import Pool
from proteus.launcher import LaunchFailed, gpu_host
from proteus.launcher.gpu_host import GpuHost
from proteus.launcher.installation import Installation
from proteus.launcher.repository import Repository
from tests.changed_deployment import ABSENT, changed

STAGES = ("vision_encoder", "connector", "text_encoder", "denoiser", "vae_decoder")
POOL = {"url": "encoder:8001", "timeout_ms": 1000, "max_at_once": 1}
ASKED = "proteus.engines.check_installed"
PROFILES = "proteus.profiles.other_profiles"


def host_of(changes: Mapping[str, Any], *, pool: Pool = "all") -> GpuHost:
    host = Repository.of(changed(changes), pool=pool, hardware="gpu").gpu
    assert host is not None
    return host


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with one GPU, on which TensorRT can be imported and finds every engine."""
    monkeypatch.setattr(cuda_driver, "compute_capabilities", lambda: (89,))
    monkeypatch.setattr(GpuHost, "_tensorrt_version", lambda self: "10.13.3.9")
    monkeypatch.setattr(ASKED, lambda deployment, version, sm, models: [])
    monkeypatch.setattr(PROFILES, lambda deployment, models: [])


def test_a_deployment_without_the_table_names_what_to_add() -> None:
    with pytest.raises(LaunchFailed, match=r"has no \[gpu\].*python -m proteus\.configs"):
        Repository.of(changed({"gpu": ABSENT}), hardware="gpu")


def test_a_machine_without_a_gpu_is_told_before_anything_starts(container: Path) -> None:
    assert cuda_driver.compute_capabilities("no-such-driver.so") == ()
    host = GpuHost.of(changed({}), ("llm",))
    with pytest.raises(LaunchFailed, match=r"no GPU is there.*--gpus all.*--hardware cpu"):
        host.check(Installation.find(container))


def test_the_driver_says_the_capability_of_each_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    class Driver:
        def cuInit(self, flags: int) -> int:
            return 0

        def cuDeviceGetCount(self, count: object) -> int:
            return self._set(count, 2)

        def cuDeviceGet(self, device: object, number: int) -> int:
            return self._set(device, number)

        def cuDeviceGetAttribute(self, value: object, attribute: int, device: ctypes.c_int) -> int:
            return self._set(value, ((8, 9), (12, 0))[device.value][attribute - cuda_driver.CAPABILITY_MAJOR])

        def _set(self, reference: object, value: int) -> int:
            reference._obj.value = value  # type: ignore[attr-defined]
            return 0

    monkeypatch.setattr(ctypes, "CDLL", lambda library: Driver())
    assert cuda_driver.compute_capabilities() == (89, 120)


@pytest.mark.usefixtures("one_gpu")
@pytest.mark.parametrize(
    ("pool", "changes", "devices"),
    [
        ("all", {}, (0,)),
        ("all", {"gpu.devices": [1], "gpu.llm.device": 2, "gpu.llm.tensor_parallel": 2}, (0, 1, 2, 3)),
        ("encoder", {"gpu.devices": [1, 2]}, (1, 2)),
        ("language", {"gpu.devices": [1], "encoder_pool": POOL}, (0,)),
        ("draw", {"gpu.denoiser.device": 3}, (0, 3)),
    ],
)
def test_the_gpus_of_a_server_are_those_of_its_models(
    pool: Pool, changes: dict[str, Any], devices: tuple[int, ...]
) -> None:
    assert host_of(changes, pool=pool).devices() == devices


@pytest.mark.usefixtures("one_gpu")
def test_a_host_that_has_all_of_it_may_start(container: Path) -> None:
    assert host_of({}).check(Installation.find(container)) == []


@pytest.mark.usefixtures("one_gpu")
def test_everything_that_is_missing_is_told_at_once(container: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (container / "backends" / "tensorrt" / "libtriton_tensorrt.so").unlink()
    monkeypatch.setattr(ASKED, lambda deployment, version, sm, models: [f"connector: no engine for {version}, sm{sm}"])
    monkeypatch.setattr(PROFILES, lambda deployment, models: [f"{len(models)} engines have other profiles"])
    host = host_of({"gpu.devices": [0, 4]})
    with pytest.raises(LaunchFailed) as caught:
        host.check(Installation.find(container))
    told = str(caught.value)
    assert "GPU 4 is not there: 1 are" in told
    assert "no native backend tensorrt in" in told
    assert "which vision_encoder, connector, text_encoder, vae_decoder need" in told
    assert "connector: no engine for 10.13.3.9, sm89" in told
    assert "5 engines have other profiles" in told


@pytest.mark.usefixtures("one_gpu")
@pytest.mark.parametrize(
    ("changes", "asked"),
    [
        ({"gpu.llm.device": 1}, {89: {"vision_encoder", "connector", "text_encoder", "vae_decoder", "denoiser"}}),
        (
            {"gpu.denoiser.device": 1},
            {89: {"vision_encoder", "connector", "text_encoder", "vae_decoder"}, 120: {"denoiser"}},
        ),
        ({"gpu.denoiser.runtime": "torch", "gpu.denoiser.device": 1}, {89: {"vision_encoder", "connector"}}),
    ],
)
def test_an_engine_is_looked_at_for_the_gpus_that_it_runs_on_and_no_others(
    container: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], asked: dict[int, set[str]]
) -> None:
    monkeypatch.setattr(cuda_driver, "compute_capabilities", lambda: (89, 120))
    looked_at: dict[int, set[str]] = {}

    def look(deployment: object, version: str, sm: int, models: Collection[str]) -> list[str]:
        looked_at.setdefault(sm, set()).update(set(models) & set(STAGES))
        return []

    monkeypatch.setattr(ASKED, look)
    pool: Pool = "encoder" if "gpu.denoiser.runtime" in changes else "all"
    assert host_of(changes, pool=pool).check(Installation.find(container)) == []
    assert looked_at == asked


@pytest.mark.usefixtures("one_gpu")
def test_the_embedded_server_has_no_tensorrt_and_runs_other_runtimes() -> None:
    with pytest.raises(LaunchFailed, match="no native backend tensorrt in the embedded tritonserver"):
        host_of({}).check(Installation.find())
    others = host_of({f"gpu.{stage}.runtime": "torch" for stage in STAGES})
    assert others.check(Installation.find()) == []


@pytest.mark.usefixtures("one_gpu")
def test_engines_that_cannot_be_looked_at_are_said_so(container: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GpuHost, "_tensorrt_version", lambda self: None)
    assert host_of({}).check(Installation.find(container)) == [
        "TensorRT cannot be imported here, so no engine was looked at before the start"
    ]


@pytest.mark.parametrize(
    ("program", "version"),
    [("__version__ = '10.13.3.9'", "10.13.3.9"), ("raise ImportError('libnvinfer.so.10')", None)],
)
def test_the_version_of_tensorrt_is_asked_in_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, version: str | None
) -> None:
    (tmp_path / "tensorrt.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert GpuHost.of(changed({}), ("connector",))._tensorrt_version() == version
    monkeypatch.setattr(gpu_host, "IMPORT_TIMEOUT_S", 0.0)
    assert GpuHost.of(changed({}), ("connector",))._tensorrt_version() is None
