"""Where the embedded server's pieces are, and how they are put together for one server.

Knows the wheel (nvidia-pytriton) that carries tritonserver; knows nothing of deployments.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from proteus.launcher.failure import LaunchFailed
from proteus.launcher.ports import LOOPBACK, Ports
from proteus.launcher.tracing import OFF, Tracing

HERE = Path(__file__).parent
PYTHON_BACKEND_FILES = ("libtriton_python.so", "triton_python_backend_utils.py")
STUB = "triton_python_backend_stub"
SHM_DEFAULT_BYTES = SHM_GROWTH_BYTES = 1 << 20
EXIT_TIMEOUT_S = 1
# The allocator gives a large buffer back when it is freed, and has few heaps to keep the others in: else the server and
# the door grow with every burst, and keep twice what they need. An operator's own values go first.
FREE_SOON = {
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 17),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 17),
}
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """The pieces of the installed wheel."""

    tritonserver: Path
    libraries: Path
    python_backend: Path
    stub: Path
    caches: Path

    @staticmethod
    def find() -> Wheel:
        """Raises LaunchFailed when the wheel, or a stub for this Python version, is not installed."""
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        spec = importlib.util.find_spec("pytriton")
        if spec is None or spec.origin is None:
            raise LaunchFailed("the embedded tritonserver is not installed", fix="pip install nvidia-pytriton==0.7.0")
        package = Path(spec.origin).parent
        root = package / "tritonserver"
        stub = root / "python_backend_stubs" / version / STUB
        if not stub.is_file():
            known = ", ".join(sorted(folder.name for folder in (root / "python_backend_stubs").iterdir()))
            raise LaunchFailed(f"no backend stub for Python {version}", fix=f"use one of Python {known}")
        return Wheel(
            tritonserver=root / "bin" / "tritonserver",
            libraries=package.parent / "nvidia_pytriton.libs",
            python_backend=root / "backends" / "python",
            stub=stub,
            caches=root / "caches",
        )


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


def lay_out_backends(folder: Path, wheel: Wheel) -> None:
    """Fills `folder` with the `python` backend of the wheel and our own Python-based ones (backends/).

    Copies, not links: Triton takes the folder of a backend from the resolved path of its files.
    """
    python = folder / "python"
    python.mkdir(parents=True)
    for name in PYTHON_BACKEND_FILES:
        shutil.copy(wheel.python_backend / name, python / name)
    shutil.copy(wheel.stub, python / STUB)
    (python / STUB).chmod(0o755)
    for model in sorted((HERE / "backends").glob("*/model.py")):
        own = folder / model.parent.name
        own.mkdir()
        shutil.copy(model, own / model.name)


def environment(wheel: Wheel, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment of the server, which its stubs inherit: this Python, this package, one thread each."""
    libraries = [str(wheel.libraries), str(find_libpython())]
    package_parent = HERE.parent.parent
    inherited_python = inherited.get("PYTHONPATH", "")
    python_path = [inherited_python] if inherited_python else []
    if package_parent != Path(sysconfig.get_path("purelib")):
        python_path.insert(0, str(package_parent))
    own = {
        "PATH": os.pathsep.join([str(Path(sys.prefix, "bin")), inherited.get("PATH", os.defpath)]),
        "LD_LIBRARY_PATH": os.pathsep.join(libraries),
        "PYTHONPATH": os.pathsep.join(python_path),
        "TOKENIZERS_PARALLELISM": "false",
        **dict.fromkeys(ONE_THREAD, "1"),
    }
    dropped = {"PYTHONHOME", "PYTHONSTARTUP"}
    return {name: value for name, value in {**FREE_SOON, **inherited, **own}.items() if name not in dropped}


def command(
    wheel: Wheel,
    *,
    repository: Path,
    models: Sequence[str],
    backends: Path,
    ports: Ports,
    response_cache_bytes: int,
    shm_prefix: str,
    tracing: Tracing = OFF,
) -> list[str]:
    """The command line of tritonserver: loopback only, `models` of `repository`, as configured there; none: all."""
    cache = [f"--cache-directory={wheel.caches}", f"--cache-config=local,size={response_cache_bytes}"]
    return [
        str(wheel.tritonserver),
        f"--model-repository={repository}",
        f"--backend-directory={backends}",
        f"--backend-config=python,shm-region-prefix-name={shm_prefix}",
        f"--backend-config=python,shm-default-byte-size={SHM_DEFAULT_BYTES}",
        f"--backend-config=python,shm-growth-byte-size={SHM_GROWTH_BYTES}",
        # The configurations are complete; completing them would start every stub twice.
        "--disable-auto-complete-config",
        f"--http-address={LOOPBACK}",
        f"--http-port={ports.http}",
        f"--grpc-address={LOOPBACK}",
        f"--grpc-port={ports.grpc}",
        f"--metrics-address={LOOPBACK}",
        f"--metrics-port={ports.metrics}",
        "--allow-gpu-metrics=false",
        "--pinned-memory-pool-byte-size=0",
        f"--exit-timeout-secs={EXIT_TIMEOUT_S}",
        # Those that are kept for the next requests keep the memory of the largest ones they ever were.
        "--grpc-infer-allocation-pool-size=0",
        *(cache if response_cache_bytes else []),
        *tracing.arguments(),
        *(_only(models) if models else []),
    ]


def _only(models: Sequence[str]) -> list[str]:
    """Load these and no others. Triton then lets clients load and unload models: nobody has the key that takes."""
    closed = f"model-repository:proteus-key={secrets.token_hex(16)}"
    loaded = [f"--load-model={model}" for model in models]
    return [
        "--model-control-mode=explicit",
        f"--http-restricted-api={closed}",
        f"--grpc-restricted-protocol={closed}",
        *loaded,
    ]
