"""Installations of tritonserver that are empty files."""

from __future__ import annotations

from pathlib import Path

import pytest

from proteus.launcher.installation import PYTHON_BACKEND_FILES, STUB, THIS_PYTHON, Installation


@pytest.fixture
def wheel(tmp_path: Path) -> Installation:
    """As the wheel brings it."""
    root = tmp_path / "site-packages" / "pytriton" / "tritonserver"
    installation = Installation(
        tritonserver=root / "bin" / "tritonserver",
        libraries=tmp_path / "site-packages" / "nvidia_pytriton.libs",
        python_backend=root / "backends" / "python",
        stub=root / "python_backend_stubs" / "3.11" / STUB,
        caches=root / "caches",
    )
    touch(installation.stub, *(installation.python_backend / name for name in PYTHON_BACKEND_FILES))
    return installation


@pytest.fixture
def container(tmp_path: Path) -> Path:
    """A folder as NVIDIA's containers have it, with native backends."""
    root = tmp_path / "opt" / "tritonserver"
    python = root / "backends" / "python"
    touch(root / "bin" / "tritonserver", *(python / name for name in PYTHON_BACKEND_FILES))
    for name in ("onnxruntime", "tensorrt"):
        touch(root / "backends" / name / f"libtriton_{name}.so")
    touch(root / "backends" / "tensorrt" / "libnvinfer_beside.so")
    (python / STUB).write_bytes(b"\x7fELF\0libpython" + THIS_PYTHON.encode() + b".so.1.0\0")
    return root


def touch(*files: Path) -> None:
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o644)
