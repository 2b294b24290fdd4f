"""A tritonserver that serves one deployment: started, watched, restarted, stopped."""

from __future__ import annotations

import http.client
import logging
import os
import secrets
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from rich.console import Console

from proteus.launcher import layout, ports
from proteus.launcher.command import command
from proteus.launcher.failure import LaunchFailed
from proteus.launcher.guardian import remove_folder
from proteus.launcher.installation import Installation
from proteus.launcher.log import bound, count_loaded, error_lines, read_from
from proteus.launcher.ports import Ports
from proteus.launcher.process import ServerProcess
from proteus.launcher.processes import Lives, tell_of_end
from proteus.launcher.repository import Options, Repository
from proteus.launcher.surroundings import refuse_noexec, shared_memory_notes
from proteus.launcher.tracing import OFF, Tracing
from proteus.launcher.watch import RestartBudget, RestartPolicy, find_death
from proteus.limits_gpu import LOOPBACK, Hardware

if TYPE_CHECKING:
    from proteus.deployment import Deployment, Pool

logger = logging.getLogger("proteus.launcher")

POLL_S = 0.05
WATCH_S = 1.0  # between two looks; the kernel tells of a death at once
PORT_ATTEMPTS = 3
PORT_TAKEN = "already in use"


class Server:
    """Serves a deployment on loopback, or at `host`, until stopped; a context manager.

    `deployment` is a loaded deployment, the path of its file, or a plain `Repository`. Ports not given are chosen.
    Of a fleet, the server has the models of its `pool`. `tritonserver` is the folder of an installed one; by default
    the embedded one runs.
    `log` receives the server's log; without it the log lives as long as the server. With `watch`, a server that lost
    a backend stub is killed and started again on the same ports, which fails all requests in flight.
    """

    def __init__(
        self,
        deployment: Deployment | Path | Repository,
        *,
        pool: Pool = "all",
        hardware: Hardware = "cpu",
        http_port: int | None = None,
        grpc_port: int | None = None,
        metrics_port: int | None = None,
        host: str = LOOPBACK,
        tritonserver: Path | None = None,
        log: Path | None = None,
        watch: bool = True,
        restart_policy: RestartPolicy = RestartPolicy(),  # noqa: B008 - frozen
        show_progress: bool = False,
        ready_timeout_s: float = 120.0,
        tracing: Tracing = OFF,
    ) -> None:
        self.repository = Repository.of(deployment, pool=pool, hardware=hardware)
        self.restarts = 0
        self._is_open = not ports.is_loopback(host)
        self._host, self._given = host, {"http": http_port, "grpc": grpc_port, "metrics": metrics_port}
        self._ports = ports.choose(**self._given, host=host)
        self._tritonserver = tritonserver
        self._log_given = log
        self._watch = watch
        self._restart_policy = restart_policy
        self._ready_timeout_s, self._tracing = ready_timeout_s, tracing
        self._console = Console(stderr=True, quiet=not show_progress)
        self._folder: Path | None = None
        self._process: ServerProcess | None = None
        self._stubs: dict[int, str] = {}
        self._lives = Lives()
        self._failure: LaunchFailed | None = None
        self._stopping, self._draining = threading.Event(), threading.Event()
        self._look = threading.Event()  # for the watcher: somebody died, or it is to stop
        self._ended, self._ready = threading.Event(), threading.Event()
        self._watcher: threading.Thread | None = None

    @classmethod
    def for_repository(cls, path: Path, *, response_cache_bytes: int = 0, **options: Unpack[Options]) -> Self:
        """A server of a plain Triton model repository."""
        return cls(Repository(path=path, response_cache_bytes=response_cache_bytes), **options)

    @property
    def ports(self) -> Ports:
        return self._ports

    @property
    def answers(self) -> bool:
        """Not before it has started, and not while it is started anew."""
        return self._ready.is_set()

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

    def count_stubs(self) -> dict[str, int]:
        """Living backend stubs by model; none where nothing runs."""
        process = self._process
        return {} if process is None else dict(Counter(sorted(process.stubs().values())))

    def is_ready(self) -> bool:
        """Whether the server answers and all its stubs live."""
        return self.why_not_ready() is None and _answers_ready(self._ports)

    def why_not_ready(self) -> str | None:
        """What the launcher knows without asking the server; None where nothing is against it."""
        process = self._process
        if process is None or self._stopping.is_set():
            return "the server is not running"
        if self._draining.is_set():
            return "the server is draining"
        if not self._ready.is_set():
            return "the server is restarting" if self.restarts else "the server is starting"
        return find_death(process.pid, self._stubs, self._lives)

    def why_not_alive(self) -> str | None:
        """Why nobody would start this server again; None as long as it is looked after."""
        if self._failure is not None:
            return "the launcher has given up on the server; its log tells why"
        watcher = self._watcher
        unwatched = watcher is not None and not watcher.is_alive() and not self._stopping.is_set()
        return "nobody watches the server any more" if unwatched else None

    def start(self) -> Self:
        """Starts the server and waits until it is ready.

        Raises LaunchFailed, with the errors of the server's log, when a model cannot be loaded or time runs out.
        """
        if self._process is not None:
            raise LaunchFailed("the server is already started", fix="stop() it first, or make another Server")
        for event in (self._stopping, self._draining, self._ended):
            event.clear()
        installation = Installation.find(self._tritonserver)
        notes = [] if self.repository.gpu is None else self.repository.gpu.check(installation)
        self._folder = Path(tempfile.mkdtemp(prefix="proteus-"))
        try:
            refuse_noexec(self._folder)
            layout.lay_out_backends(self._folder / "backends", installation)
            self.log.parent.mkdir(parents=True, exist_ok=True)
            self.log.write_bytes(b"")
            self._warn([*notes, *shared_memory_notes()])
            self._start_on_free_ports()
        except BaseException:
            self._end_process()
            raise
        if self._watch:
            self._watcher = threading.Thread(target=self._keep_running, name="proteus-watch", daemon=True)
            self._watcher.start()
        return self

    def begin_drain(self) -> None:
        """From now on it says that it is not ready; it answers as before."""
        self._draining.set()

    def give_up(self, failure: LaunchFailed) -> None:
        """Ends `wait()` with this failure."""
        self._note(f"giving up: {failure}", warn=True)
        self._failure = failure
        self._ended.set()

    def stop(self) -> None:
        """Stops the server and removes its processes, shared memory and folder; safe to call again."""
        self._stopping.set()
        self._look.set()
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

    def _warn(self, notes: list[str]) -> None:
        cores = len(os.sched_getaffinity(0))
        if self.repository.cores is not None and cores < self.repository.cores:
            notes = [*notes, f"this machine has {cores} cores, the deployment expects {self.repository.cores}"]
        if self._is_open:
            notes = [*notes, f"listening on {self._host}: only for a private network, Triton's ports have no password"]
        for note in notes:
            self._note(note, warn=True)

    def _start_on_free_ports(self) -> None:
        for _ in range(PORT_ATTEMPTS - 1):
            try:
                self._start_process()
            except LaunchFailed as failure:
                if PORT_TAKEN not in str(failure) or None not in self._given.values():
                    raise
                self._kill_process()
                self._ports = ports.choose(**self._given, host=self._host)
            else:
                return
        self._start_process()

    def _start_process(self) -> None:
        folder = self._own_folder()
        for name, port in self._ports.items():
            if not ports.is_free(port, self._host):
                raise LaunchFailed(
                    f"{name} port {port} is {PORT_TAKEN}", fix="give another one, or none to have one chosen"
                )
        installation = Installation.find(self._tritonserver)
        prefix = f"{folder.name}-{secrets.token_hex(3)}"
        line = command(
            installation,
            repository=self.repository.path.resolve(),
            models=self.repository.models,
            backends=folder / "backends",
            ports=self._ports,
            response_cache_bytes=self.repository.response_cache_bytes,
            shm_prefix=prefix,
            tracing=self._tracing,
            gpu=self.repository.gpu,
        )
        offset = self.log.stat().st_size
        self._process = ServerProcess.start(
            line,
            environment={**layout.environment(installation, os.environ), **self._tracing.environment()},
            folder=folder,
            shm_prefix=prefix,
            log=self.log,
        )
        self._wait_for_models(self._process, offset)
        self._ready.set()
        tell_of_end([self._process.pid, *self._stubs], self._look.set)

    def _wait_for_models(self, process: ServerProcess, offset: int) -> None:
        started = monotonic()
        self._stubs = {}
        num_models = self.repository.count_models()
        with self._progress(f"starting the server: {num_models} models") as show:
            while not _answers_ready(self._ports):
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
        while not self._stopping.is_set():
            bound(self.log)
            process = self._running()
            death = find_death(process.pid, self._stubs, self._lives)
            if death is None:
                self._look.wait(WATCH_S)
                self._look.clear()
                continue
            self._ready.clear()
            self._note(f"{death}; restarting the server", warn=True)
            self._kill_process()
            try:
                self._restart(budget)
            except LaunchFailed as failure:
                if not self._stopping.is_set():
                    self.give_up(failure)
                return

    def _restart(self, budget: RestartBudget) -> None:
        reason: LaunchFailed | None = None
        while (delay_s := budget.take()) is not None and not self._stopping.wait(delay_s):
            started = monotonic()
            self.restarts += 1
            try:
                self._start_process()
            except (LaunchFailed, OSError) as failure:
                reason = failure if isinstance(failure, LaunchFailed) else LaunchFailed.of_system(failure)
                self._note(str(reason), warn=True)
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

    def _kill_process(self) -> None:
        if self._process is not None:
            self._process.kill()
        self._lives.forget()

    def _end_process(self) -> None:
        self._ready.clear()
        process, self._process = self._process, None
        if process is not None:
            process.stop()
        self._lives.forget()
        if self._folder is not None:
            remove_folder(self._folder)

    def _note(self, text: str, *, warn: bool = False) -> None:
        """One line for the reader of the server's log, of our logger and of the terminal."""
        logger.log(logging.WARNING if warn else logging.INFO, text)
        if self._folder is not None and self.log.is_file():
            with suppress(OSError), self.log.open("a") as file:  # a full disk stops no restart
                file.write(f"proteus {datetime.now(UTC):%m%d %H:%M:%S} {text}\n")
        self._console.print(text)


def _answers_ready(listening: Ports) -> bool:
    connection = http.client.HTTPConnection(listening.from_here, listening.http, timeout=2)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
