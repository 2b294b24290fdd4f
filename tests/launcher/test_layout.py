from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from proteus.launcher import LaunchFailed, layout
from proteus.launcher.installation import PYTHON_BACKEND_FILES, STUB, Installation

OURS = {model.parent.name for model in (layout.HERE / "backends").glob("*/model.py")}


def test_backends_folder_holds_python_ours_and_an_executable_stub(wheel: Installation, tmp_path: Path) -> None:
    folder = tmp_path / "backends"
    layout.lay_out_backends(folder, wheel)
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    python = {f"python/{name}" for name in (*PYTHON_BACKEND_FILES, STUB)}
    assert files == python | {f"{name}/model.py" for name in OURS}
    assert os.access(folder / "python" / STUB, os.X_OK)
    assert "onnxruntime" in OURS


def test_native_backends_are_linked_and_go_before_ours_of_that_name(container: Path, tmp_path: Path) -> None:
    """Triton looks for a backend's libraries where its files really are: beside them lies what they need."""
    folder = tmp_path / "backends"
    layout.lay_out_backends(folder, Installation.find(container))
    assert {path.name for path in folder.iterdir()} == {"python", "tensorrt"} | OURS
    for name in ("onnxruntime", "tensorrt"):
        assert (
            folder / name / f"libtriton_{name}.so"
        ).resolve() == container / "backends" / name / f"libtriton_{name}.so"
        assert not (folder / name / "model.py").exists()
    assert (folder / "tensorrt" / "libnvinfer_beside.so").is_file()
    for name in OURS - {"onnxruntime"}:
        assert (folder / name / "model.py").is_file()


def test_ours_stands_in_for_a_native_backend_that_an_image_lacks(container: Path, tmp_path: Path) -> None:
    (container / "backends" / "onnxruntime" / "libtriton_onnxruntime.so").unlink()
    layout.lay_out_backends(tmp_path / "backends", Installation.find(container))
    assert (tmp_path / "backends" / "onnxruntime" / "model.py").is_file()


def test_environment_puts_this_python_first_and_one_thread_each(wheel: Installation) -> None:
    inherited = {"PATH": "/bin", "HOME": "/home/x", "PYTHONHOME": "/elsewhere", "OMP_NUM_THREADS": "64"}
    environment = layout.environment(wheel, inherited)
    assert environment["PATH"] == f"{sys.prefix}/bin:/bin"
    assert environment["LD_LIBRARY_PATH"].split(":")[0] == str(wheel.libraries)
    assert (environment["HOME"], environment["OMP_NUM_THREADS"]) == ("/home/x", "1")
    assert "PYTHONHOME" not in environment


@pytest.mark.parametrize("inherited", [{}, {"LD_LIBRARY_PATH": "/usr/local/cuda/lib64:/opt/hpcx/lib"}])
def test_an_installed_server_finds_its_libraries_as_inherited(container: Path, inherited: dict[str, str]) -> None:
    environment = layout.environment(Installation.find(container), inherited)
    assert environment.get("LD_LIBRARY_PATH") == inherited.get("LD_LIBRARY_PATH")


def test_memory_is_given_back_soon_unless_the_operator_says_otherwise(wheel: Installation) -> None:
    assert layout.environment(wheel, {}).items() >= layout.FREE_SOON.items()
    environment = layout.environment(wheel, {"MALLOC_ARENA_MAX": "16"})
    assert environment.items() >= {**layout.FREE_SOON, "MALLOC_ARENA_MAX": "16"}.items()


def test_missing_libpython_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(layout.sysconfig, "get_config_var", lambda name: str(tmp_path))
    monkeypatch.setattr(layout.sys, "prefix", str(tmp_path))
    monkeypatch.setattr(layout.sys, "base_prefix", str(tmp_path))
    with pytest.raises(LaunchFailed, match=r"no libpython3\.\d+\.so\.1\.0.*apt-get install libpython3"):
        layout.find_libpython()
