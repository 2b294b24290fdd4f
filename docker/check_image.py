#!/usr/bin/env python3
"""Says whether an image can serve: libraries of the native backends, and Triton's Python backend with this numpy.

`--at-rest FOLDER` looks at a tritonserver without starting it, as the build does: is it whole, is its Python this one,
is every library there that a backend is linked with. Without it, a server is started with models that give back what
they are sent; docs/docker.md tells how and when.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path

# From the driver of the host, put into the container when it is started with GPUs; and the library of tritonserver
# itself, which has it in memory when it loads a backend.
ELSEWHERE = ("libcuda.so", "libnvidia-", "libnvcuvid.so", "libtritonserver.so")
USED = ("python", "tensorrt", "onnxruntime")  # backends of our configurations; an image has others
TOLD = ("tensorrt", "tensorrt_llm", "torch", "numpy", "onnxruntime-gpu", "proteus")
KINDS = {"TYPE_FP32": "float32", "TYPE_INT64": "int64", "TYPE_UINT8": "uint8"}
MODEL = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([self.echo(request)]) for request in requests]

    def echo(self, request):
        return pb_utils.Tensor("y", pb_utils.get_input_tensor_by_name(request, "x").as_numpy().copy())
"""


def ldd(library: Path) -> str:
    return subprocess.run(["ldd", str(library)], capture_output=True, text=True, check=False).stdout


def missing_libraries(backends: Path, links: Callable[[Path], str] = ldd) -> Iterator[str]:
    """A line for each library that a backend of ours in `backends` is linked with and that is not there."""
    for library in sorted(file for name in USED for file in backends.glob(f"{name}/libtriton_*.so")):
        for line in links(library).splitlines():
            name, found, where = line.strip().partition(" => ")
            if found and where.startswith("not found") and not name.startswith(ELSEWHERE):
                yield f"backend {library.parent.name} needs {name}, which this image has not"


def wrong_installation(tritonserver: Path) -> Iterator[str]:
    """A line when a piece is missing, or when its Python backend embeds another Python than this one."""
    from proteus.launcher import LaunchFailed
    from proteus.launcher.installation import Installation

    try:
        Installation.find(tritonserver)
    except LaunchFailed as failure:
        yield str(failure)


def write_models(repository: Path) -> None:
    """One for each kind of tensor."""
    for kind in KINDS:
        folder = repository / kind.lower()
        (folder / "1").mkdir(parents=True)
        (folder / "1" / "model.py").write_text(MODEL)
        (folder / "config.pbtxt").write_text(
            f'backend: "python"\ninput [ {{ name: "x" data_type: {kind} dims: [ -1 ] }} ]\n'
            f'output [ {{ name: "y" data_type: {kind} dims: [ -1 ] }} ]\ninstance_group [ {{ kind: KIND_CPU }} ]\n'
        )


def wrong_echoes(tritonserver: Path | None) -> Iterator[str]:
    """Starts a server and sends tensors through its Python backend."""
    import numpy as np
    import tritonclient.grpc as triton

    from proteus.launcher import Server

    with tempfile.TemporaryDirectory() as folder:
        write_models(Path(folder))
        with (
            Server.for_repository(Path(folder), tritonserver=tritonserver, ready_timeout_s=60) as server,
            triton.InferenceServerClient(server.ports.grpc_url) as client,
        ):
            for kind, name in KINDS.items():
                sent = np.arange(100_000).astype(name)
                tensor = triton.InferInput("x", sent.shape, kind.removeprefix("TYPE_"))
                tensor.set_data_from_numpy(sent)
                got = client.infer(kind.lower(), [tensor], client_timeout=30).as_numpy("y")
                if got is None or not np.array_equal(got, sent):
                    yield f"the Python backend gives other {name} back than it was sent, with numpy {np.__version__}"


def versions() -> Iterator[str]:
    for name in TOLD:
        try:
            yield f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            yield f"{name} is not installed"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--at-rest", type=Path, metavar="FOLDER")
    given = parser.parse_args(arguments)
    folder = os.environ.get("TRITONSERVER_FOLDER")
    tritonserver = Path(folder) if folder else None
    sys.stdout.write("".join(f"{line}\n" for line in versions()))
    looked_at = given.at_rest or tritonserver
    wrong = [] if looked_at is None else [*wrong_installation(looked_at), *missing_libraries(looked_at / "backends")]
    if given.at_rest is None:
        wrong += wrong_echoes(tritonserver)
    sys.stderr.write("".join(f"{line}\n" for line in wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
