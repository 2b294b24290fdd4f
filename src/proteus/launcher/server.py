"""A tritonserver that serves one deployment: started, watched, restarted, stopped."""

from __future__ import annotations

import http.client
import logging
import os
import secrets
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypedDict, Unpack

from rich.console import Console

from proteus.launcher import layout, ports
from proteus.launcher.failure import LaunchFailed
from proteus.launcher.guardian import remove_folder
from proteus.launcher.log import count_loaded, error_lines, read_from
from proteus.launcher.ports import LOOPBACK, Ports
from proteus.launcher.process import ServerProcess
from proteus.launcher.tracing import OFF, Tracing
from proteus.launcher.watch import RestartBudget, RestartPolicy, find_death

if TYPE_CHECKING:
    from proteus.deployment import Deployment

logger = logging.getLogger("proteus.launcher")

POLL_S = 0.05
WATCH_S = 0.2
PORT_ATTEMPTS = 3
PORT_TAKEN = "already in use"


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """What the launcher needs to know of a deployment."""

    path: Path
    models: tuple[str, ...] = ()  # to serve; none: whatever is there
    response_cache_bytes: int = 0
    cores: int | None = None

    @staticmethod
    def of(deployment: Deployment | Path | Repository) -> Repository:
        """Reads the deployment file when given its path."""
        if isinstance(deployment, Repository):
            return deployment
        from proteus.deployment import Deployment

        loaded = Deployment.load(deployment) if isinstance(deployment, Path) else deployment
        return Repository(
            path=loaded.repository_path,
            models=loaded.models,
            response_cache_bytes=loaded.cache.response_cache_bytes,
            cores=loaded.cores,
        )

    def count_models(self) -> int:
        return len(self.models) or sum(1 for _ in self.path.glob("*/config.pbtxt"))


class Options(TypedDict, total=False):
    """How to run a server; see `Server`."""

    http_port: int | None
    grpc_port: int | None
    metrics_port: int | None
    log: Path | None
    watch: bool
    restart_policy: RestartPolicy
    show_progress: bool
    ready_timeout_s: float
    tracing: Tracing


class Server:
    """Serves a deployment on loopback until stopped; a context manager.

    `deployment` is a loaded deployment, the path of its file, or a plain `Repository`. Ports not given are chosen.
    `log` receives the server's log; without it the log lives as long as the server. With `watch`, a server that lost
    a backend stub is killed and started again on the same ports, which fails all requests in flight.
    """

    def __init__(
        self,
        deployment: Deployment | Path | Repository,
        *,
        http_port: int | None = None,
        grpc_port: int | None = None,
        metrics_port: int | None = None,
        log: Path | None = None,
        watch: bool = True,
        restart_policy: RestartPolicy = RestartPolicy(),  # noqa: B008 - frozen
        show_progress: bool = False,
        ready_timeout_s: float = 120.0,
        tracing: Tracing = OFF,
    ) -> None:
        self.repository = Repository.of(deployment)
        self.restarts = 0
        self._given = {"http": http_port, "grpc": grpc_port, "metrics": metrics_port}
        self._ports = ports.choose(**self._given)
        self._log_given = log
        self._watch = watch
        self._restart_policy = restart_policy
        self._ready_timeout_s, self._tracing = ready_timeout_s, tracing
        self._console = Console(stderr=True, quiet=not show_progress)
        self._folder: Path | None = None
        self._process: ServerProcess | None = None
        self._stubs: dict[int, str] = {}
        self._failure: LaunchFailed | None = None
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._ready = threading.Event()
        self._watcher: threading.Thread | None = None

    @classmethod
    def for_repository(cls, path: Path, *, response_cache_bytes: int = 0, **options: Unpack[Options]) -> Self:
        """A server of a plain Triton model repository."""
        return cls(Repository(path=path, response_cache_bytes=response_cache_bytes), **options)

    @property
    def ports(self) -> Ports:
        return self._ports

    @property
    def pid(self) -> int:
        """Process id of the running tritonserver; another one after a restart."""
        return self._running().pid

    @property
    def log(self) -> Path:
        """Where the server's log is."""
        if self._log_given is not None:
            return self._log_given
        return self._own_folder() / "server.log"

    def stub_pids(self) -> dict[str, list[int]]:
        """Process ids of the backend stubs by model."""
        by_model: dict[str, list[int]] = {}
        for pid, model in sorted(self._running().stubs().items()):
            by_model.setdefault(model, []).append(pid)
        return by_model

    def is_ready(self) -> bool:
        """Whether the server answers and all its stubs live."""
        process = self._process
        return (
            process is not None
            and self._ready.is_set()
            and find_death(process.pid, self._stubs) is None
            and _answers_ready(self._ports.http)
        )

    def start(self) -> Self:
        """Starts the server and waits until it is ready.

        Raises LaunchFailed, with the errors of the server's log, when a model cannot be loaded or time runs out.
        """
        if self._process is not None:
            raise LaunchFailed("the server is already started", fix="stop() it first, or make another Server")
        self._stopping.clear()
        self._ended.clear()
        self._warn_of_few_cores()
        self._folder = Path(tempfile.mkdtemp(prefix="proteus-"))
        try:
            layout.lay_out_backends(self._folder / "backends", layout.Wheel.find())
            self.log.parent.mkdir(parents=True, exist_ok=True)
            self.log.write_bytes(b"")
            self._start_on_free_ports()
        except BaseException:
            self._end_process()
            raise
        if self._watch:
            self._watcher = threading.Thread(target=self._keep_running, name="proteus-watch", daemon=True)
            self._watcher.start()
        return self

    def stop(self) -> None:
        """Stops the server and removes its processes, shared memory and folder; safe to call again."""
        self._stopping.set()
        if self._watcher is not None:
            self._watcher.join()
            self._watcher = None
        self._end_process()
        self._ended.set()

    def wait(self) -> None:
        """Blocks until the server is stopped; raises LaunchFailed when it cannot be kept running."""
        self._ended.wait()
        if self._failure is not None:
            raise self._failure

    def wait_until_ready(self, timeout_s: float, *, restarts: int = 0) -> None:
        """Blocks until the server is ready after at least `restarts` restarts; LaunchFailed after `timeout_s`."""
        deadline = monotonic() + timeout_s
        while self.restarts < restarts or not self.is_ready():
            if self._failure is not None:
                raise self._failure
            if monotonic() > deadline:
                raise LaunchFailed("the server is not ready", limit=f"{timeout_s:g} s")
            sleep(POLL_S)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _running(self) -> ServerProcess:
        if self._process is None:
            raise LaunchFailed("the server is not running", fix="call start() first")
        return self._process

    def _own_folder(self) -> Path:
        if self._folder is None:
            raise LaunchFailed("the server is not started", fix="call start() first")
        return self._folder

    def _warn_of_few_cores(self) -> None:
        cores = len(os.sched_getaffinity(0))
        if self.repository.cores is not None and cores < self.repository.cores:
            self._note(f"this machine has {cores} cores, the deployment expects {self.repository.cores}", warn=True)

    def _start_on_free_ports(self) -> None:
        for _ in range(PORT_ATTEMPTS - 1):
            try:
                self._start_process()
            except LaunchFailed as failure:
                if PORT_TAKEN not in str(failure) or None not in self._given.values():
                    raise
                self._kill_process()
                self._ports = ports.choose(**self._given)
            else:
                return
        self._start_process()

    def _start_process(self) -> None:
        folder = self._own_folder()
        for name, port in self._ports.items():
            if not ports.is_free(port):
                raise LaunchFailed(
                    f"{name} port {port} is {PORT_TAKEN}", fix="give another one, or none to have one chosen"
                )
        wheel = layout.Wheel.find()
        prefix = f"{folder.name}-{secrets.token_hex(3)}"
        command = layout.command(
            wheel,
            repository=self.repository.path.resolve(),
            models=self.repository.models,
            backends=folder / "backends",
            ports=self._ports,
            response_cache_bytes=self.repository.response_cache_bytes,
            shm_prefix=prefix,
            tracing=self._tracing,
        )
        offset = self.log.stat().st_size
        self._process = ServerProcess.start(
            command,
            environment={**layout.environment(wheel, os.environ), **self._tracing.environment()},
            folder=folder,
            shm_prefix=prefix,
            log=self.log,
        )
        self._wait_for_models(self._process, offset)
        self._ready.set()

    def _wait_for_models(self, process: ServerProcess, offset: int) -> None:
        started = monotonic()
        self._stubs = {}
        num_models = self.repository.count_models()
        with self._progress(f"starting the server: {num_models} models") as show:
            while not _answers_ready(self._ports.http):
                self._stubs |= process.stubs()
                passed_s = monotonic() - started
                if not process.is_alive():
                    raise self._load_failure("the server stopped while it loaded its models", offset)
                if passed_s > self._ready_timeout_s:
                    raise self._load_failure(f"the server is not ready after {passed_s:.0f} s", offset)
                loaded = count_loaded(read_from(self.log, offset))
                show(f"starting the server: {loaded} of {num_models} models loaded, {passed_s:.1f} s")
                if self._stopping.wait(POLL_S):
                    raise LaunchFailed("the server was stopped while it started")
        self._stubs |= process.stubs()
        if not process.is_alive():
            raise self._load_failure("the server stopped when it was ready", offset)
        self._console.print(f"server ready: {num_models} models in {monotonic() - started:.1f} s")

    def _load_failure(self, what: str, offset: int) -> LaunchFailed:
        lines = error_lines(read_from(self.log, offset)) or ["(the log holds no error)"]
        return LaunchFailed("\n  ".join([what, *lines]), fix="mend what the lines above name")

    @contextmanager
    def _progress(self, text: str) -> Iterator[Callable[[str], None]]:
        if self._console.is_terminal and not self._console.quiet:
            with self._console.status(text) as status:
                yield status.update
        else:
            self._console.print(text)
            yield lambda _: None

    def _keep_running(self) -> None:
        budget = RestartBudget(self._restart_policy)
        while not self._stopping.wait(WATCH_S):
            process = self._running()
            death = find_death(process.pid, self._stubs)
            if death is None:
                continue
            self._ready.clear()
            self._note(f"{death}; restarting the server", warn=True)
            self._kill_process()
            try:
                self._restart(budget)
            except LaunchFailed as failure:
                if not self._stopping.is_set():
                    self._give_up(failure)
                return

    def _restart(self, budget: RestartBudget) -> None:
        reason: LaunchFailed | None = None
        while (delay_s := budget.take()) is not None and not self._stopping.wait(delay_s):
            started = monotonic()
            self.restarts += 1
            try:
                self._start_process()
            except LaunchFailed as failure:
                reason = failure
                self._note(str(failure), warn=True)
                self._kill_process()
            else:
                self._note(f"the server is ready again after {monotonic() - started:.1f} s")
                return
        policy = budget.policy
        raise reason or LaunchFailed(
            "the server's stubs keep dying",
            limit=f"{policy.max_restarts} restarts within {policy.window_s:g} s",
            fix=f"read {self.log}",
        )

    def _give_up(self, failure: LaunchFailed) -> None:
        self._note(f"giving up: {failure}", warn=True)
        self._failure = failure
        self._ended.set()

    def _kill_process(self) -> None:
        if self._process is not None:
            self._process.kill()

    def _end_process(self) -> None:
        self._ready.clear()
        process, self._process = self._process, None
        if process is not None:
            process.stop()
        if self._folder is not None:
            remove_folder(self._folder)

    def _note(self, text: str, *, warn: bool = False) -> None:
        """One line for the reader of the server's log, of our logger and of the terminal."""
        logger.log(logging.WARNING if warn else logging.INFO, text)
        if self._folder is not None and self.log.is_file():
            with self.log.open("a") as file:
                file.write(f"proteus {datetime.now(UTC):%m%d %H:%M:%S} {text}\n")
        self._console.print(text)


def _answers_ready(port: int) -> bool:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=2)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
