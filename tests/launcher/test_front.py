"""The gateway's process in front of a server, with a small program that speaks to a launcher as the gateway does.

tests/server/test_serve.py asks what matters of the real one.
"""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from time import sleep

import pytest

from proteus.launcher import LaunchFailed, RestartPolicy
from proteus.launcher.front import Front, FrontOptions
from proteus.launcher.process import ServerProcess
from proteus.launcher.processes import is_alive
from tests.waiting import wait_for

PROGRAM = """
import os, signal, sys, threading
from http.server import BaseHTTPRequestHandler, HTTPServer
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
busy = given["--deployment"] + ".busy"
if not os.path.exists(given["--deployment"]):
    print("one", "two: there is no such file", sep="\\n", file=sys.stderr)
    sys.exit(1)
class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write((given["--server"] + " " + given["--metrics-port"]).encode())
server = HTTPServer((given["--host"], int(given["--port"])), Health)
def end(*_):
    while os.path.exists(busy):
        signal.sigtimedwait([], 0.01)
    print("ended well", flush=True)
    os._exit(0)
signal.signal(signal.SIGINT, end)
server.serve_forever()
"""
POLICY = RestartPolicy(max_restarts=2, delay_step_s=0.01)


@pytest.fixture
def deployment(tmp_path: Path) -> Path:
    file = tmp_path / "deployment.toml"
    file.touch()
    return file


@pytest.fixture
def failures() -> list[LaunchFailed]:
    return []


def front_of(deployment: Path, failures: list[LaunchFailed], *, port: int = 0, drain_s: float = 20.0) -> Front:
    options = FrontOptions(
        deployment=deployment,
        port=port,
        drain_s=drain_s,
        log_folder=deployment.parent,
        program=(sys.executable, "-c", PROGRAM),
    )
    return Front(options, grpc_url="here:1", health_url="here:2", gave_up=failures.append, restart_policy=POLICY)


@pytest.fixture
def front(deployment: Path, failures: list[LaunchFailed]) -> Iterator[Front]:
    with front_of(deployment, failures) as running:
        yield running


def answer(front: Front) -> str | None:
    connection = http.client.HTTPConnection("127.0.0.1", front.port, timeout=5)
    try:
        connection.request("GET", "/")
        return connection.getresponse().read().decode()
    except OSError:
        return None
    finally:
        connection.close()


def is_over(front: Front, failures: list[LaunchFailed], pid: int) -> bool:
    """Whether it was started anew, or given up."""
    try:
        return bool(failures) or front.pid != pid
    except LaunchFailed:  # just now
        return False


def has_restarted(front: Front, restarts: int) -> bool:
    return front.restarts == restarts and answer(front) is not None


def test_it_is_told_its_server_and_answers_where_it_says(front: Front) -> None:
    assert front.url == f"http://127.0.0.1:{front.port}"
    assert answer(front) == f"here:1,here:2 {front.metrics_port}"


def test_one_that_dies_comes_back_on_the_same_port(front: Front, failures: list[LaunchFailed]) -> None:
    port, before = front.port, front.pid
    os.kill(before, signal.SIGKILL)
    assert wait_for(lambda: front.restarts == 1 and answer(front) is not None)
    assert (front.port, front.pid != before, failures) == (port, True, [])


def test_a_death_and_a_stop_do_not_wait_for_the_next_look(
    deployment: Path, failures: list[LaunchFailed], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proteus.launcher.front.WATCH_S", 3600)
    with front_of(deployment, failures) as front:
        for restarts in (1, 2):
            os.kill(front.pid, signal.SIGKILL)
            assert wait_for(partial(has_restarted, front, restarts))
    assert not failures


def test_one_whose_guardian_is_killed_goes_with_it_and_comes_back(front: Front, failures: list[LaunchFailed]) -> None:
    before = front.pid
    guardian = int(Path(f"/proc/{before}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(guardian, signal.SIGKILL)
    assert wait_for(lambda: front.restarts == 1 and answer(front) is not None)
    assert (is_alive(before), failures) == (False, [])


def test_one_that_keeps_dying_is_given_up(front: Front, failures: list[LaunchFailed]) -> None:
    for _ in range(POLICY.max_restarts + 1):
        pid = front.pid
        os.kill(pid, signal.SIGKILL)
        wait_for(partial(is_over, front, failures, pid))
    assert wait_for(lambda: bool(failures))
    assert "the gateway keeps dying; limit: 2 restarts within 60 s" in str(failures[0])


def test_one_that_cannot_be_started_any_more_is_given_up(
    front: Front, failures: list[LaunchFailed], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def fails(*_: object, **__: object) -> ServerProcess:
        raise LaunchFailed("the server process could not be started")

    monkeypatch.setattr(ServerProcess, "start", fails)
    os.kill(front.pid, signal.SIGKILL)
    assert wait_for(lambda: bool(failures))
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == [], "and no try leaves anything"


def test_stop_waits_for_what_is_open_and_leaves_nothing(front: Front, deployment: Path) -> None:
    pid, busy = front.pid, Path(f"{deployment}.busy")
    busy.touch()
    stopping = threading.Thread(target=front.stop)
    stopping.start()
    sleep(0.3)
    assert (stopping.is_alive(), is_alive(pid)) == (True, True)
    busy.unlink()
    stopping.join()
    assert (is_alive(pid), "ended well" in front.log.read_text()) == (False, True)


def test_one_that_has_used_its_time_may_still_tell_whom_it_ends(deployment: Path, failures: list[LaunchFailed]) -> None:
    busy = Path(f"{deployment}.busy")
    busy.touch()
    with front_of(deployment, failures, drain_s=0.1) as front:
        threading.Timer(0.6, busy.unlink).start()
        front.stop()
        assert "ended well" in front.log.read_text()


def test_one_that_does_not_end_in_its_time_is_ended(
    deployment: Path, failures: list[LaunchFailed], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proteus.launcher.front.END_S", 0.1)
    Path(f"{deployment}.busy").touch()
    with front_of(deployment, failures, drain_s=0.1) as front:
        pid = front.pid
        front.stop()
        assert not is_alive(pid)


def test_a_block_left_without_a_stop_ends_it_at_once(deployment: Path, failures: list[LaunchFailed]) -> None:
    Path(f"{deployment}.busy").touch()
    with front_of(deployment, failures) as front:
        pid = front.pid
    assert (is_alive(pid), "ended well" in front.log.read_text()) == (False, False)


def test_a_stop_that_is_interrupted_ends_it_at_once(deployment: Path, failures: list[LaunchFailed]) -> None:
    Path(f"{deployment}.busy").touch()
    main = threading.get_ident()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with front_of(deployment, failures) as front:
            pid = front.pid
            threading.Timer(0.3, signal.pthread_kill, (main, signal.SIGINT)).start()
            with pytest.raises(KeyboardInterrupt):
                front.stop()
    finally:
        signal.signal(signal.SIGINT, before)
    assert wait_for(lambda: not is_alive(pid))


def test_what_it_said_is_why_it_did_not_start(tmp_path: Path, failures: list[LaunchFailed]) -> None:
    with pytest.raises(LaunchFailed, match="stopped while it started\n  one\n  two: there is no such file"):
        front_of(tmp_path / "missing.toml", failures).__enter__()


def test_a_port_that_is_taken_is_named(front: Front, deployment: Path, failures: list[LaunchFailed]) -> None:
    with pytest.raises(LaunchFailed, match=f"gateway port {front.port} of 127.0.0.1 cannot be had"):
        front_of(deployment, failures, port=front.port).__enter__()


def test_the_last_port_there_is_has_none_after_it(deployment: Path, failures: list[LaunchFailed]) -> None:
    front = front_of(deployment, failures, port=65_535)
    assert (front.port, front.metrics_port < 65_535) == (65_535, True)


ORPHAN = """
import sys
from pathlib import Path
from proteus.launcher.front import Front, FrontOptions
folder = Path(sys.argv[1])
options = FrontOptions(deployment=folder / "deployment.toml", port=0, drain_s=1.0, log_folder=folder,
                       program=(sys.executable, "-c", sys.argv[2]))
with Front(options, grpc_url="a", health_url="b", gave_up=print) as front:
    print(front.pid, flush=True)
    sys.stdin.read()
"""


def test_it_goes_with_a_launcher_that_is_killed(deployment: Path) -> None:
    command = [sys.executable, "-c", ORPHAN, str(deployment.parent), PROGRAM]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        pid = int(launcher.stdout.readline())
        launcher.kill()
    assert wait_for(lambda: not is_alive(pid))
