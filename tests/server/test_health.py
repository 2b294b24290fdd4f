"""The health port of a real server, and `proteus health`: a stub dies, and is missed at once."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from typer.testing import CliRunner

from proteus.cli.commands import app
from proteus.launcher import Server
from proteus.launcher.health import HealthServer
from proteus.launcher.ports import CANDIDATES, is_free
from tests.server.toys import write_python_model

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two models, of which tests kill stubs."""
    repository = tmp_path_factory.mktemp("health") / "repository"
    write_python_model(repository, "add_one")
    write_python_model(repository, "add_two")
    with Server.for_repository(repository) as server:
        yield server


@pytest.fixture
def health(toy: Server) -> Iterator[HealthServer]:
    toy.wait_until_ready(timeout_s=20)
    with HealthServer(toy, port=0) as serving:
        yield serving


def ask(health: HealthServer, path: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(health.url.removeprefix("http://"), timeout=5)
    connection.request("GET", path)
    response = connection.getresponse()
    document = json.loads(response.read())
    connection.close()
    return response.status, document


def seconds_until(condition: Callable[[], bool], timeout_s: float = 60.0) -> float:
    started = monotonic()
    while not condition():
        assert monotonic() - started < timeout_s
        sleep(0.01)
    return monotonic() - started


def test_a_server_that_is_well_says_so_with_every_model(health: HealthServer) -> None:
    assert ask(health, "/ready")[0] == 200
    status, whole = ask(health, "/")
    assert status == 200
    assert whole["models"] == {"add_one": True, "add_two": True}
    assert whole["stubs"] == {"add_one": 2, "add_two": 2}


def test_a_dead_stub_is_missed_within_a_second_and_the_server_is_ready_again(toy: Server, health: HealthServer) -> None:
    before = toy.restarts
    os.kill(toy.stub_pids()["add_two"][0], signal.SIGKILL)
    assert seconds_until(lambda: ask(health, "/ready")[0] == 503) < 1.0
    assert ask(health, "/live")[0] == 200
    seconds_until(lambda: ask(health, "/ready")[0] == 200)
    assert toy.restarts == before + 1
    assert ask(health, "/")[1]["restarts"] == before + 1


def test_a_server_without_its_models_is_never_ready_on_the_way_back(toy: Server, health: HealthServer) -> None:
    """From the kill to the end of the restart: not one answer says ready."""
    restarts = toy.restarts
    os.kill(toy.pid, signal.SIGKILL)
    seconds_until(lambda: ask(health, "/ready")[0] == 503)
    answers = []
    while toy.restarts == restarts or not toy._ready.is_set():
        answers.append(ask(health, "/ready")[0])
    assert answers.count(503) >= len(answers) - 1, "the last one may have been asked when all was well again"
    seconds_until(lambda: ask(health, "/ready")[0] == 200)


def test_the_command_tells_a_person_and_an_engine(health: HealthServer) -> None:
    url = health.url.removeprefix("http://")
    told = CliRunner().invoke(app, ["health", "--url", url])
    assert (told.exit_code, told.output.startswith("ready: 2 models, 4 stubs")) == (0, True)
    document = CliRunner().invoke(app, ["health", "--url", url, "--json"])
    assert json.loads(document.output)["ready"]


SERVE = """
import sys
from pathlib import Path
from proteus.launcher import Repository, serve
repository, log, port = sys.argv[1:]
ports = dict(http_port=None, grpc_port=None, metrics_port=None, health_port=int(port))
sys.exit(serve(Repository(path=Path(repository)), log=Path(log), **ports))
"""


def test_serve_tells_health_from_before_the_models_are_loaded_until_it_ends(toy: Server, tmp_path: Path) -> None:
    port = next(port for port in CANDIDATES if is_free(port))
    command = [sys.executable, "-c", SERVE, str(toy.repository.path), str(tmp_path / "log"), str(port)]

    def told(*more: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["health", "--url", f"127.0.0.1:{port}", *more])
        return result.exit_code, result.output

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as serving:
        seconds_until(lambda: told() == (1, "not ready: the server is starting\n"))
        assert told("--live") == (0, "alive\n")
        assert serving.stdout is not None
        said = dict(serving.stdout.readline().split(maxsplit=1) for _ in range(4))
        assert said["health"].strip() == f"http://127.0.0.1:{port}"
        assert told()[0] == 0
        serving.send_signal(signal.SIGTERM)
        assert serving.communicate()[0].splitlines()[-1] == "stopped"
    assert (told()[0], "nothing answers" in told()[1]) == (1, True)


def test_the_command_hands_its_health_options_to_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr("proteus.launcher.serve", lambda deployment, **options: given.update(options) or 0)
    demo = str(ROOT / "deployments" / "demo.toml")
    names = ("health_port", "health_host", "ready_timeout_s")
    options = ["--health-port", "8080", "--health-host", "0.0.0.0", "--ready-timeout-s", "1800"]
    assert CliRunner().invoke(app, ["serve", "--deployment", demo, *options]).exit_code == 0
    assert [given[name] for name in names] == [8080, "0.0.0.0", 1800.0]
    assert CliRunner().invoke(app, ["serve", "--deployment", demo]).exit_code == 0
    assert [given[name] for name in names] == [None, None, None]
