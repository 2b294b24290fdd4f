"""Which tritonserver runs: that of the wheel (nvidia-pytriton), or one that is installed, as in NVIDIA's containers.

Knows nothing of deployments. What is where is found once; `layout` puts it together for one server.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from proteus.launcher.failure import LaunchFailed

PYTHON_BACKEND_FILES = ("libtriton_python.so", "triton_python_backend_utils.py")
STUB = "triton_python_backend_stub"
LINKED_PYTHON = re.compile(rb"libpython(3\.\d+)\.so")
THIS_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """The pieces of one tritonserver."""

    tritonserver: Path
    python_backend: Path
    stub: Path
    caches: Path
    libraries: Path | None = None  # of the wheel, which finds them nowhere else
    backends: Path | None = None  # native ones that are installed beside it; the wheel has none

    @staticmethod
    def find(folder: Path | None = None) -> Installation:
        """That in `folder`, laid out like /opt/tritonserver; by default the wheel's. LaunchFailed when it is not whole.

        The stub embeds Python: it has to be the version that runs here, for which this package is installed.
        """
        return _of_wheel() if folder is None else _of_folder(folder.resolve())

    def native(self) -> dict[str, Path]:
        """Name and folder of every native backend but `python`."""
        if self.backends is None:
            return {}
        return {found.parent.name: found.parent for found in sorted(self.backends.glob("*/libtriton_*.so"))}


def _of_wheel() -> Installation:
    spec = importlib.util.find_spec("pytriton")
    if spec is None or spec.origin is None:
        raise LaunchFailed(
            "the embedded tritonserver is not installed",
            fix="pip install nvidia-pytriton==0.7.0, or name the folder of an installed one with --tritonserver",
        )
    package = Path(spec.origin).parent
    root = package / "tritonserver"
    stub = root / "python_backend_stubs" / THIS_PYTHON / STUB
    if not stub.is_file():
        known = ", ".join(sorted(folder.name for folder in (root / "python_backend_stubs").iterdir()))
        raise LaunchFailed(f"no backend stub for Python {THIS_PYTHON}", fix=f"use one of Python {known}")
    return Installation(
        tritonserver=root / "bin" / "tritonserver",
        libraries=package.parent / "nvidia_pytriton.libs",
        python_backend=root / "backends" / "python",
        stub=stub,
        caches=root / "caches",
    )


def _of_folder(root: Path) -> Installation:
    python_backend = root / "backends" / "python"
    tritonserver, stub = root / "bin" / "tritonserver", python_backend / STUB
    for file in (tritonserver, stub, *(python_backend / name for name in PYTHON_BACKEND_FILES)):
        if not file.is_file():
            raise LaunchFailed(f"{file} is missing", fix="name the folder of a whole tritonserver: /opt/tritonserver")
    linked = LINKED_PYTHON.search(stub.read_bytes())
    if linked is not None and linked[1].decode() != THIS_PYTHON:
        raise LaunchFailed(
            f"{stub} embeds Python {linked[1].decode()}, this is Python {THIS_PYTHON}",
            fix="install proteus into the Python of that tritonserver and start it there",
        )
    return Installation(
        tritonserver=tritonserver,
        python_backend=python_backend,
        stub=stub,
        caches=root / "caches",
        backends=root / "backends",
    )
