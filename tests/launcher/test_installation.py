from __future__ import annotations

from pathlib import Path

import pytest

from proteus.launcher import LaunchFailed
from proteus.launcher.installation import STUB, Installation


def test_the_embedded_server_is_whole_and_has_no_native_backends() -> None:
    found = Installation.find()
    assert all(file.is_file() for file in (found.tritonserver, found.stub))
    assert found.libraries is not None
    assert found.libraries.is_dir()
    assert found.native() == {}


def test_a_folder_is_taken_as_it_is_with_its_native_backends(container: Path) -> None:
    found = Installation.find(container)
    assert (found.tritonserver, found.caches) == (container / "bin" / "tritonserver", container / "caches")
    assert found.libraries is None, "it finds its own"
    assert set(found.native()) == {"onnxruntime", "python", "tensorrt"}


@pytest.mark.parametrize(
    "missing", ["bin/tritonserver", f"backends/python/{STUB}", "backends/python/libtriton_python.so"]
)
def test_a_folder_that_is_not_whole_is_refused_by_the_file_that_is_missing(container: Path, missing: str) -> None:
    (container / missing).unlink()
    with pytest.raises(LaunchFailed, match=f"{missing} is missing.*/opt/tritonserver"):
        Installation.find(container)


def test_a_stub_of_another_python_is_refused(container: Path) -> None:
    (container / "backends" / "python" / STUB).write_bytes(b"\0libpython3.4.so.1.0\0")
    with pytest.raises(LaunchFailed, match=r"embeds Python 3\.4, this is Python 3\..*into the Python of that"):
        Installation.find(container)
