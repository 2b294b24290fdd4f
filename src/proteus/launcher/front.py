"""A gateway in front of a server, a process of its own: started, started anew when it dies, stopped before the server.

Of the gateway only its command line, its port and its two health paths are known here.
"""

from __future__ import annotations

import http.client
import logging
import os
import secrets
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Self

from proteus.launcher import ports
from proteus.launcher.failure import LaunchFailed
from proteus.launcher.log import bound, read_from
from proteus.launcher.process import ServerProcess
from proteus.launcher.processes import tell_of_end
from proteus.launcher.watch import RestartBudget, RestartPolicy
from proteus.limits_gpu import LOOPBACK, MAX_PORT

logger = logging.getLogger("proteus.launcher")
POLL_S = 0.05
WATCH_S = 1.0  # between two looks; the kernel tells of a death at once
START_S = 60.0  # until it listens
READY_S = 10.0  # and sees its server
END_S = 5.0  # beyond its own time: it tells those whom it ends, and writes its log of them
PROGRAM = (sys.executable, "-m", "proteus.cli", "gateway")
TOLD_LINES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontOptions:
    """Where a gateway listens, and how long it may go on with what is open once it is told to stop."""

    deployment: Path
    port: int  # 0 takes a free one
    host: str = LOOPBACK
    drain_s: float
    log_folder: Path
    program: tuple[str, ...] = PROGRAM
    environment: Mapping[str, str] | None = None  # None: ours


class Front:
    """A context manager; `stop()` lets it finish what is open, leaving the block without it ends it at once."""

    def __init__(
        self,
        options: FrontOptions,
        *,
        grpc_url: str,
        health_url: str,
        gave_up: Callable[[LaunchFailed], None],
        restart_policy: RestartPolicy = RestartPolicy(),  # noqa: B008 - frozen
    ) -> None:
        """`gave_up` is told, from another thread, that it cannot be kept running."""
        self._options, self._gave_up, self._restart_policy = options, gave_up, restart_policy
        self._server = f"{grpc_url},{health_url}"
        ports.is_loopback(options.host)  # or no address at all
        self.restarts = 0
        self.port, self.metrics_port = _free_ports(options.port, options.host)
        self._stopping = threading.Event()
        self._look = threading.Event()  # for the watcher: it died, or all is to stop
        self._process: ServerProcess | None = None
        self._watcher: threading.Thread | None = None

    @property
    def url(self) -> str:
        """For who is on this machine."""
        return f"http://{self._address}:{self.port}"

    @property
    def log(self) -> Path:
        return self._options.log_folder / f"gateway-{self.port}.log"

    @property
    def pid(self) -> int:
        """Another one after a restart."""
        if self._process is None:
            raise LaunchFailed("the gateway is not running", fix="enter its block first")
        return self._process.pid

    def __enter__(self) -> Self:
        """Blocks until it answers. Raises LaunchFailed with what it said when it does not."""
        if not ports.is_free(self.port, self._options.host):
            raise LaunchFailed(
                f"gateway port {self.port} of {self._options.host} cannot be had",
                fix="give another --gateway-port, or 0, and an address of this machine",
            )
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.log.write_bytes(b"")
        try:
            self._process = self._start()
            self._wait_until_ready(self._process)
        except BaseException:
            self._kill()
            raise
        self._watcher = threading.Thread(target=self._keep_running, name="proteus-front", daemon=True)
        self._watcher.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_watch()
        self._kill()

    def stop(self) -> None:
        """Lets it finish what is open, within its own time for that."""
        self._end_watch()
        if self._process is not None:
            self._process.stop()
            self._process = None

    @property
    def _address(self) -> str:
        return LOOPBACK if self._options.host == "0.0.0.0" else self._options.host

    def _start(self) -> ServerProcess:
        options = self._options
        nothing = f"proteus-gateway-{secrets.token_hex(8)}"  # it has neither a folder nor shared memory to leave
        line = [*options.program, "--deployment", str(options.deployment), "--host", options.host]
        line += ["--port", str(self.port), "--metrics-port", str(self.metrics_port), "--server", self._server]
        process = ServerProcess.start(
            line,
            environment=dict(os.environ if options.environment is None else options.environment),
            folder=Path(tempfile.gettempdir(), nothing),
            shm_prefix=nothing,
            log=self.log,
            grace_s=options.drain_s + END_S,
        )
        tell_of_end([process.pid], self._look.set)
        return process

    def _wait_until_ready(self, process: ServerProcess) -> None:
        began = monotonic()
        while (status := self._status("/health/ready")) != HTTPStatus.OK:
            passed_s = monotonic() - began
            if not process.is_alive():
                raise LaunchFailed("\n  ".join(["the gateway stopped while it started", *self._last_lines()]))
            if status is not None and passed_s > READY_S:
                return  # it listens, and will see its server, or say why it does not
            if passed_s > START_S:
                raise LaunchFailed("the gateway does not answer", limit=f"{START_S:g} s", fix=f"read {self.log}")
            self._stopping.wait(POLL_S)

    def _status(self, path: str) -> int | None:
        connection = http.client.HTTPConnection(self._address, self.port, timeout=2)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def _last_lines(self) -> list[str]:
        lines = [line.strip() for line in read_from(self.log, 0).splitlines() if line.strip()]
        return lines[-TOLD_LINES:] or [f"({self.log} is empty)"]

    def _keep_running(self) -> None:
        budget = RestartBudget(self._restart_policy)
        while not self._stopping.is_set():
            bound(self.log)
            if self._process is not None and self._process.is_alive():
                self._look.wait(WATCH_S)
                self._look.clear()
                continue
            self._kill()
            delay_s = budget.take()
            if delay_s is None:
                policy = self._restart_policy
                told = f"{policy.max_restarts} restarts within {policy.window_s:g} s"
                self._gave_up(LaunchFailed("the gateway keeps dying", limit=told, fix=f"read {self.log}"))
                return
            if not self._stopping.wait(delay_s):
                self.restarts += 1
                logger.warning("the gateway died; starting it anew, its log is %s", self.log)
                with suppress(LaunchFailed, OSError):  # told by the guardian; the next round counts it as a death
                    self._process = self._start()

    def _end_watch(self) -> None:
        self._stopping.set()
        self._look.set()
        if self._watcher is not None:
            self._watcher.join()
            self._watcher = None

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None


def _free_ports(port: int, host: str) -> tuple[int, int]:
    """For clients, and for metrics on loopback: the next one where a port is given and that is free."""
    chosen = ports.choose(http=port or None, grpc=None, metrics=None, host=LOOPBACK if port else host)
    after = port + 1
    return chosen.http, after if port and after <= MAX_PORT and ports.is_free(after) else chosen.metrics
