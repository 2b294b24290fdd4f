"""The guardian with a stand-in for tritonserver: a program with a child in its process group."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest

from proteus.launcher import LaunchFailed, guardian
from proteus.launcher.process import STOP_GRACE_S, ServerProcess
from proteus.launcher.processes import is_alive
from tests.waiting import wait_for

PREFIX = "proteus-test-process"
SERVER = """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
pathlib.Path(sys.argv[1]).write_text(str(child.pid))
time.sleep(60)
"""


@pytest.fixture
def region() -> Iterator[Path]:
    """A shared-memory region as the server would make it."""
    region = guardian.SHM / f"{PREFIX}-{os.getpid()}"
    region.touch()
    yield region
    region.unlink(missing_ok=True)


@pytest.fixture
def process(tmp_path: Path, region: Path) -> Iterator[ServerProcess]:
    process = start(tmp_path, region.name)
    yield process
    process.stop()


def start(tmp_path: Path, prefix: str, server: str = SERVER) -> ServerProcess:
    folder = tmp_path / "folder"
    folder.mkdir()
    command = [sys.executable, "-c", server, str(folder / "child")]
    log = tmp_path / "log"
    return ServerProcess.start(command, environment={**os.environ}, folder=folder, shm_prefix=prefix, log=log)


def child_of(process: ServerProcess) -> int:
    file = process.folder / "child"
    assert wait_for(lambda: file.is_file() and bool(file.read_text()))
    return int(file.read_text())


def test_stop_ends_the_group_and_removes_folder_and_shared_memory(process: ServerProcess, region: Path) -> None:
    child = child_of(process)
    process.stop()
    assert not is_alive(process.pid)
    assert not is_alive(child)
    assert not process.folder.exists()
    assert not region.exists()
    process.stop()


@pytest.mark.parametrize("gently", [True, False])
def test_who_left_the_group_is_ended_as_well(tmp_path: Path, region: Path, gently: bool) -> None:
    """As workers of TensorRT-LLM, which MPI starts in sessions of their own: they would keep the memory of the GPU."""
    stub = """import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(60)"""
    server = f"""
import pathlib, signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_DFL)  # as tritonserver, it ends at once; Python loses one within a finalizer
stub = subprocess.Popen([sys.executable, "-c", {stub!r}], stdout=subprocess.PIPE)
pathlib.Path(sys.argv[1]).write_text(stub.stdout.readline().decode())
time.sleep(60)
"""
    process = start(tmp_path, region.name, server)
    worker, begun_s = child_of(process), monotonic()
    try:
        process.stop() if gently else process.kill()
        assert not is_alive(worker)
        assert monotonic() - begun_s < STOP_GRACE_S, "nobody waited for it"
    finally:
        process.stop()
        if is_alive(worker):
            os.kill(worker, signal.SIGKILL)


def test_kill_keeps_the_folder_for_the_next_run(process: ServerProcess, region: Path) -> None:
    child = child_of(process)
    process.kill()
    assert not is_alive(process.pid)
    assert not is_alive(child)
    assert process.folder.exists()
    assert not region.exists()


def test_stubs_go_with_a_server_that_died(process: ServerProcess) -> None:
    child = child_of(process)
    os.kill(process.pid, signal.SIGKILL)
    assert wait_for(lambda: not is_alive(child))
    assert not process.is_alive()


def test_server_goes_with_a_killed_guardian(process: ServerProcess, region: Path) -> None:
    child = child_of(process)
    os.kill(int(Path(f"/proc/{process.pid}/stat").read_text().split()[3]), signal.SIGKILL)
    assert wait_for(lambda: not is_alive(process.pid))
    process.kill()
    assert wait_for(lambda: not is_alive(child))
    assert not region.exists()


def test_a_guardian_that_somebody_else_ended_keeps_the_folder_for_the_next_run(process: ServerProcess) -> None:
    process._guardian.terminate()
    process._guardian.wait(10)
    assert not is_alive(process.pid)
    assert process.folder.exists()
    process.stop()
    assert not process.folder.exists()


def test_closed_pipe_is_the_end_of_the_launcher(tmp_path: Path, region: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    command = [sys.executable, "-I", "-S", guardian.__file__, str(folder), region.name, str(tmp_path / "log"), "5"]
    command += [sys.executable, "-c", SERVER, str(folder / "child")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as guard:
        assert guard.stdin is not None
        assert guard.stdout is not None
        pid = int(guard.stdout.readline())
        assert is_alive(pid)
        guard.stdin.close()
    assert guard.returncode == 0
    assert not is_alive(pid)
    assert not folder.exists()
    assert not region.exists()


def test_program_that_cannot_start_is_a_launch_failure(tmp_path: Path) -> None:
    with pytest.raises(LaunchFailed, match="could not be started"):
        ServerProcess.start(
            ["/no/such/program"], environment={}, folder=tmp_path, shm_prefix=PREFIX, log=tmp_path / "log"
        )
