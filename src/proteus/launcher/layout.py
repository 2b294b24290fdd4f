"""The folder of backends and the environment of one server; knows nothing of deployments."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from proteus.launcher.failure import LaunchFailed
from proteus.launcher.installation import PYTHON_BACKEND_FILES, STUB, Installation

HERE = Path(__file__).parent
# The allocator gives a large buffer back when it is freed, and has few heaps to keep the others in: else the server and
# the door grow with every burst, and keep twice what they need. An operator's own values go first.
FREE_SOON = {
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 17),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 17),
}
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def find_libpython() -> Path:
    """The folder of the shared libpython that the stub needs; LaunchFailed when there is none."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    name = f"libpython{version}.so.1.0"
    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    libdir = sysconfig.get_config_var("LIBDIR") or "/usr/lib"
    folders = [Path(libdir), Path(sys.prefix, "lib"), Path(sys.base_prefix, "lib"), Path("/usr/lib", multiarch)]
    for folder in folders:
        if (folder / name).is_file():
            return folder
    raise LaunchFailed(
        f"no {name}, which the Python backend needs",
        fix=f"apt-get install libpython{version}, or a Python built with --enable-shared",
    )


def lay_out_backends(folder: Path, installation: Installation) -> None:
    """Fills `folder` with the `python` backend, our own Python-based ones (backends/), and links to the native ones.

    Triton takes the folder of a backend from the resolved path of its files: what was put together here is copied, what
    is whole where it is installed is linked. Where there is a native backend, it takes the place of ours of that name.
    """
    python = folder / "python"
    python.mkdir(parents=True)
    for name in PYTHON_BACKEND_FILES:
        shutil.copy(installation.python_backend / name, python / name)
    shutil.copy(installation.stub, python / STUB)
    (python / STUB).chmod(0o755)
    native = {name: path for name, path in installation.native().items() if name != python.name}
    for name, path in native.items():
        (folder / name).symlink_to(path, target_is_directory=True)
    for model in sorted((HERE / "backends").glob("*/model.py")):
        if model.parent.name in native:
            continue
        own = folder / model.parent.name
        own.mkdir()
        shutil.copy(model, own / model.name)


def environment(installation: Installation, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment of the server, which its stubs inherit: this Python, this package, one thread each.

    An installed tritonserver finds its libraries as it was inherited.
    """
    package_parent = HERE.parent.parent
    inherited_python = inherited.get("PYTHONPATH", "")
    python_path = [inherited_python] if inherited_python else []
    if package_parent != Path(sysconfig.get_path("purelib")):
        python_path.insert(0, str(package_parent))
    own = {
        "PATH": os.pathsep.join([str(Path(sys.prefix, "bin")), inherited.get("PATH", os.defpath)]),
        "PYTHONPATH": os.pathsep.join(python_path),
        "TOKENIZERS_PARALLELISM": "false",
        **dict.fromkeys(ONE_THREAD, "1"),
    }
    if installation.libraries is not None:
        own["LD_LIBRARY_PATH"] = os.pathsep.join([str(installation.libraries), str(find_libpython())])
    dropped = {"PYTHONHOME", "PYTHONSTARTUP"}
    return {name: value for name, value in {**FREE_SOON, **inherited, **own}.items() if name not in dropped}
