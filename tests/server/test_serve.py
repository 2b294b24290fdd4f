"""`proteus serve` when it is told to stop: what is open is finished first."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from proteus.client import Client
from proteus.launcher.drain import count_open_requests
from proteus.launcher.ports import Ports
from proteus.launcher.processes import is_alive
from tests.server.toys import write_python_model
from tests.waiting import wait_for

ROOT = Path(__file__).parents[2]
LONG: dict[str, Any] = {"min_tokens": 900, "max_tokens": 900}
ANY_PORTS = ("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0", "--health-port", "0")
# A plain repository, which `proteus serve` takes no name of.
TOY = """
import sys
from pathlib import Path
from proteus.launcher import Repository, serve
ports = dict.fromkeys(("http_port", "grpc_port", "metrics_port"))
sys.exit(serve(Repository(path=Path(sys.argv[1])), **ports, drain_s=30, log=Path(sys.argv[2])))
"""
NEVER_ENDS = """
import time
class TritonPythonModel:
    def execute(self, requests):
        time.sleep(600)
"""


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
def serving(*command: str) -> Iterator[Serving]:
    with subprocess.Popen(
        [sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            yield Serving(process)
        finally:
            process.terminate()
            sleep(0.1)
            process.terminate()


@pytest.fixture
def deployment(tmp_path: Path) -> Path:
    """The demo's, that watches health often: so that a drain need not last for long."""
    text = (ROOT / "deployments" / "demo.toml").read_text(encoding="utf-8")
    text = re.sub(r"(?m)^(health_(?:interval|timeout)_ms) = \S+", r"\1 = 100", text)
    file = tmp_path / "deployment.toml"
    file.write_text(text.replace("../var/", "").replace('"../', f'"{ROOT}/'), encoding="utf-8")
    return file


def open_requests(served: Serving) -> int | None:
    port = int(served.said["metrics"].removesuffix("/metrics").rpartition(":")[2])
    return count_open_requests(Ports(http=0, grpc=0, metrics=port))


def ask_toy(url: str) -> int:
    """The status of an answer, 0 where there was none."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    tensor = {"name": "x", "shape": [1], "datatype": "FP32", "data": [1.0]}
    try:
        connection.request("POST", "/v2/models/toy/infer", json.dumps({"inputs": [tensor]}))
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        connection.close()


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    repository = write_python_model(tmp_path / "repository", "toy", NEVER_ENDS)
    with (
        serving("-c", TOY, str(repository), str(tmp_path / "server.log")) as served,
        ThreadPoolExecutor(3) as pool,  # two instances, so that one waits
    ):
        answers = [pool.submit(ask_toy, served.said["http"]) for _ in range(3)]
        assert wait_for(lambda: open_requests(served) == 1)
        for _ in range(2):
            served.process.send_signal(signal.SIGINT)
            sleep(0.3)
        assert [line.partition(",")[0] for line in served.rest().splitlines()] == ["draining", "stopped"]
        assert 200 not in [answer.result() for answer in answers]
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


def test_what_is_open_survives_a_stop_at_a_gateway_that_died_before_and_at_its_server(
    tmp_path: Path, deployment: Path
) -> None:
    options = ["--deployment", str(deployment), "--log", str(tmp_path / "server.log")]
    options += ["--gateway-port", "0", "--drain-s", "60"]
    with (
        serving("-m", "proteus.cli", "serve", *ANY_PORTS, *options) as served,
        Client(served.said["grpc"]) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        url, first = gateway_of(served)
        assert get_json(url, "/health/ready")[0] == 200
        os.kill(first, signal.SIGKILL)
        assert wait_for(lambda: has_gateway(served))
        pid = gateway_of(served)[1]
        assert (gateway_of(served)[0], pid != first) == (url, True)
        with chat(url, stream=True, **LONG) as answer:
            assert answer.status == 200
            answer.readline()
            served.process.send_signal(signal.SIGTERM)
            lines = answer.read().split(b"\n\n")
        assert lines[-2] == b"data: [DONE]"
        assert b'"finish_reason":"length"' in b"".join(lines)

        stream = client.stream("Some long ones, while it drains", n=4, **LONG)
        next(stream)
        rest = pool.submit(list, stream)
        assert wait_for(lambda: served.health() == (503, {"ready": False, "reasons": ["the server is draining"]}))
        assert (is_alive(pid), rest.done()) == (False, False)
        assert client.ask("One more", max_tokens=4).usage.output_tokens <= 4
        *_, whole = rest.result()
        assert [choice.finish_reason for choice in whole.choices] == ["length"] * 4
        said = [line.partition(",")[0] for line in served.rest().splitlines()]
    assert said == ["the gateway finishes what is open; once more to stop at once", "draining", "stopped"]
    assert served.process.returncode == 0
