"""A peer that serves OpenAI's API: started in its environment, waited for, asked, ended with all its processes."""

from __future__ import annotations

import asyncio
import http.client
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perf.peers.environments import LOGS, ROOT, VARIABLES, PeerFailed
from perf.side.asks import Ask
from perf.side.chat_http import Endpoint
from perf.side.load import drive
from perf.side.turns import Turn
from proteus.launcher import ports

HOST = "127.0.0.1"
LONGEST_START_S, LONGEST_END_S = 300.0, 15.0
LOOK_EVERY_S = 0.25
VERSIONS = "import importlib.metadata as m, sys; print(*(m.version(name) for name in sys.argv[1:]))"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What to start; `{port}` in the command is the port that it gets."""

    name: str
    python: Path
    command: Sequence[str]
    packages: Sequence[str]
    model: str  # as requests name it
    variables: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)  # of every request


class HttpPeer:
    """PeerFailed where it does not start."""

    def __init__(self, program: Program) -> None:
        self.name = program.name
        self.versions = _versions(program)
        self._log = LOGS / f"{program.name}-serve.log"
        port = ports.choose(http=None, grpc=None, metrics=None).http
        self._endpoint = Endpoint(host=HOST, port=port, model=program.model, options=program.options)
        LOGS.mkdir(parents=True, exist_ok=True)
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [part.format(port=port) for part in program.command],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env={**os.environ, **VARIABLES, **program.variables},
                start_new_session=True,  # its workers are ended with it
            )
        self.pid = self._process.pid
        try:
            self._wait_until_ready()
        except BaseException:
            self.end()
            raise

    def take_turn(self, asks: Sequence[Ask], clients: int) -> Turn:
        try:
            return asyncio.run(drive(self._endpoint.answer, asks, clients))
        except PeerFailed as failure:
            raise PeerFailed(f"{failure} ({self._log})") from failure

    def end(self) -> None:
        for kind in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, kind)
            except ProcessLookupError:
                break
            try:
                self._process.wait(LONGEST_END_S)
            except subprocess.TimeoutExpired:
                continue
        self._process.wait()

    def _wait_until_ready(self) -> None:
        until_s = time.monotonic() + LONGEST_START_S
        while not _is_healthy(self._endpoint.port):
            if (status := self._process.poll()) is not None:
                raise PeerFailed(f"ended with status {status} ({self._log})")
            if time.monotonic() > until_s:
                raise PeerFailed(f"not ready after {LONGEST_START_S:g} s ({self._log})")
            time.sleep(LOOK_EVERY_S)


def _is_healthy(port: int) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _versions(program: Program) -> dict[str, str]:
    command = [program.python, "-c", VERSIONS, *program.packages]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return dict(zip(program.packages, told, strict=True))
