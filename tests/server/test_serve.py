"""`proteus serve` when it is told to stop: what is open is finished first."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from proteus.client import Client, ClientError
from proteus.launcher.processes import is_alive

ROOT = Path(__file__).parents[2]
LONG: dict[str, Any] = {"n": 8, "min_tokens": 900, "max_tokens": 900}
ANY_PORTS = ("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0", "--health-port", "0")


class Serving:
    """A running `proteus serve`, and where it said that it listens."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        self.said: dict[str, str] = {}
        for line in process.stdout:
            if line.startswith("stop with"):
                break
            name, _, rest = line.strip().partition(" ")
            self.said[name] = rest.strip()

    def health(self) -> tuple[int, Any]:
        return get_json(self.said["health"], "/ready")

    def rest(self) -> str:
        """Of its output, after it has ended."""
        return self.process.communicate(timeout=60)[0]


def get_json(url: str, path: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=10)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[Serving]:
    command = [sys.executable, "-m", "proteus.cli", "serve", *ANY_PORTS, "--log", str(folder / "server.log"), *options]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield Serving(process)
        finally:
            process.terminate()
            sleep(0.1)
            process.terminate()


def wait_for(condition: Callable[[], bool], timeout_s: float = 20.0) -> bool:
    deadline = monotonic() + timeout_s
    while not condition():
        if monotonic() > deadline:
            return False
        sleep(0.02)
    return True


def test_answers_that_are_open_survive_a_stop_and_new_ones_are_answered_meanwhile(tmp_path: Path) -> None:
    with (
        serving(tmp_path, "--drain-s", "30") as served,
        Client(served.said["grpc"]) as client,
        ThreadPoolExecutor(4) as pool,
    ):
        assert served.health()[0] == 200
        first = client.stream("A long one", **LONG)
        next(first)
        rest = pool.submit(list, first)
        served.process.send_signal(signal.SIGTERM)
        assert wait_for(lambda: served.health() == (503, {"ready": False, "reasons": ["the server is draining"]}))
        assert not rest.done()
        assert client.ask("One more", max_tokens=4).usage.output_tokens <= 4
        *_, answer = rest.result()
        assert [choice.finish_reason for choice in answer.choices] == ["length"] * LONG["n"]
        said = served.rest()
    assert served.process.returncode == 0
    assert [line.partition(",")[0] for line in said.splitlines()] == ["draining", "stopped"]


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with serving(tmp_path, "--drain-s", "30") as served, Client(served.said["grpc"]) as client:
        stream = client.stream("A long one", **LONG)
        next(stream)
        for _ in range(2):
            served.process.send_signal(signal.SIGINT)
            sleep(0.3)
        with pytest.raises(ClientError):
            list(stream)
        assert served.rest().splitlines()[-1] == "stopped"
    assert served.process.returncode == 0


def gateway_of(served: Serving) -> tuple[str, int]:
    """Where it listens, and its process: the child of a child that has its port on its command line."""
    url = served.said["gateway"].split(",")[0]
    asked = f"--port\0{url.rpartition(':')[2]}\0".encode()
    pids = [
        int(file.parent.name)
        for file in Path("/proc").glob("[0-9]*/cmdline")
        if asked in (line := read(file)) and b"guardian.py" not in line
    ]
    (pid,) = pids
    return url, pid


def read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:  # it has ended
        return b""


def has_gateway(served: Serving) -> bool:
    try:
        return get_json(gateway_of(served)[0], "/health/ready")[0] == 200
    except (OSError, ValueError):
        return False


@contextmanager
def chat(url: str, **fields: Any) -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    document = {"model": "demo", "messages": [{"role": "user", "content": "A long one"}], **fields}
    connection.request("POST", "/v1/chat/completions", json.dumps(document), {"Content-Type": "application/json"})
    try:
        yield connection.getresponse()
    finally:
        connection.close()


def test_a_gateway_comes_back_when_it_dies_and_finishes_what_is_open_before_its_server_stops(tmp_path: Path) -> None:
    with serving(tmp_path, "--gateway-port", "0") as served:
        url, first = gateway_of(served)
        assert get_json(url, "/health/ready")[0] == 200
        os.kill(first, signal.SIGKILL)
        assert wait_for(lambda: has_gateway(served))
        assert gateway_of(served)[0] == url
        pid = gateway_of(served)[1]
        assert pid != first
        with chat(url, stream=True, **LONG) as answer:
            assert answer.status == 200
            answer.readline()
            served.process.send_signal(signal.SIGTERM)
            lines = answer.read().split(b"\n\n")
        assert lines[-2] == b"data: [DONE]"
        assert b'"finish_reason":"length"' in b"".join(lines)
        assert served.rest().splitlines()[-1] == "stopped"
        assert not is_alive(pid)
    assert served.process.returncode == 0
