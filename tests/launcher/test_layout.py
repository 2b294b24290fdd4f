from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from proteus.launcher import LaunchFailed, layout
from proteus.launcher.ports import Ports


@pytest.fixture
def wheel(tmp_path: Path) -> layout.Wheel:
    """A wheel of empty files."""
    root = tmp_path / "site-packages" / "pytriton" / "tritonserver"
    wheel = layout.Wheel(
        tritonserver=root / "bin" / "tritonserver",
        libraries=tmp_path / "site-packages" / "nvidia_pytriton.libs",
        python_backend=root / "backends" / "python",
        stub=root / "python_backend_stubs" / "3.11" / layout.STUB,
        caches=root / "caches",
    )
    for file in (wheel.stub, *(wheel.python_backend / name for name in layout.PYTHON_BACKEND_FILES)):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o644)
    return wheel


def test_backends_folder_holds_both_backends_and_an_executable_stub(wheel: layout.Wheel, tmp_path: Path) -> None:
    folder = tmp_path / "backends"
    layout.lay_out_backends(folder, wheel)
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert files == {f"python/{name}" for name in (*layout.PYTHON_BACKEND_FILES, layout.STUB)} | {
        "onnxruntime/model.py"
    }
    assert os.access(folder / "python" / layout.STUB, os.X_OK)


def test_environment_puts_this_python_first_and_one_thread_each(wheel: layout.Wheel) -> None:
    inherited = {"PATH": "/bin", "HOME": "/home/x", "PYTHONHOME": "/elsewhere", "OMP_NUM_THREADS": "64"}
    environment = layout.environment(wheel, inherited)
    assert environment["PATH"] == f"{sys.prefix}/bin:/bin"
    assert environment["LD_LIBRARY_PATH"].split(":")[0] == str(wheel.libraries)
    assert (environment["HOME"], environment["OMP_NUM_THREADS"]) == ("/home/x", "1")
    assert "PYTHONHOME" not in environment


def test_memory_is_given_back_soon_unless_the_operator_says_otherwise(wheel: layout.Wheel) -> None:
    assert layout.environment(wheel, {}).items() >= layout.FREE_SOON.items()
    environment = layout.environment(wheel, {"MALLOC_ARENA_MAX": "16"})
    assert environment.items() >= {**layout.FREE_SOON, "MALLOC_ARENA_MAX": "16"}.items()


def command_of(wheel: layout.Wheel, *, models: Sequence[str] = (), response_cache_bytes: int = 0) -> list[str]:
    return layout.command(
        wheel,
        repository=Path("/models"),
        models=models,
        backends=Path("/backends"),
        ports=Ports(http=1, grpc=2, metrics=3),
        response_cache_bytes=response_cache_bytes,
        shm_prefix="mine",
    )


def test_command_binds_every_port_to_loopback(wheel: layout.Wheel) -> None:
    command = command_of(wheel)
    for name in ("http", "grpc", "metrics"):
        assert f"--{name}-address=127.0.0.1" in command
    assert "--backend-config=python,shm-region-prefix-name=mine" in command
    assert "--grpc-infer-allocation-pool-size=0" in command, "no request's memory is kept when it has ended"
    assert not any("cache" in argument for argument in command)
    assert not any("load" in argument for argument in command), "all that is in the repository"


def test_command_asks_for_the_response_cache_when_it_has_a_size(wheel: layout.Wheel) -> None:
    assert "--cache-config=local,size=1024" in command_of(wheel, response_cache_bytes=1024)


def test_command_loads_the_models_named_and_lets_nobody_change_that(wheel: layout.Wheel) -> None:
    """To load only some, Triton has to allow clients to load and unload: a key that nobody knows forbids it."""
    first, second = (command_of(wheel, models=("chat", "llm")) for _ in range(2))
    assert {"--model-control-mode=explicit", "--load-model=chat", "--load-model=llm"} <= set(first)
    for option in ("--http-restricted-api", "--grpc-restricted-protocol"):
        keys = {argument for argument in (*first, *second) if argument.startswith(f"{option}=model-repository:")}
        assert len(keys) == 2, "another one for each server"


def test_missing_libpython_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(layout.sysconfig, "get_config_var", lambda name: str(tmp_path))
    monkeypatch.setattr(layout.sys, "prefix", str(tmp_path))
    monkeypatch.setattr(layout.sys, "base_prefix", str(tmp_path))
    with pytest.raises(LaunchFailed, match=r"no libpython3\.\d+\.so\.1\.0.*apt-get install libpython3"):
        layout.find_libpython()
