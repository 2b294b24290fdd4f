"""Answers over HTTP whether this server is ready and alive, for those who start containers and balance load.

Triton says that it is ready when a stub has died; this says so only when every stub lives and every model of the server
is ready, from the moment a death is seen until the restart is over. Three paths, GET and HEAD, one answer a connection.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from http import HTTPStatus
from time import monotonic
from types import TracebackType
from typing import Protocol, Self

from proteus import __version__
from proteus.launcher.failure import LaunchFailed
from proteus.launcher.ports import LOOPBACK, Ports

DEFAULT_PORT = 8080
WORKERS = 4  # connections that are read at a time; the others wait in the kernel's queue
BACKLOG = 64
CONNECTION_S = 2.0  # from its first byte to its last
MAX_HEAD_BYTES = 4096
ASK_TRITON_S = 0.5  # between two rounds of questions to Triton, however many ask here
TRITON_TIMEOUT_S = 1.0  # of one model
ROUND_S = 2.0  # of all of them: those that are not asked by then are not ready
PATHS = ("/", "/ready", "/live")


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Of a server at one moment."""

    ready: bool
    live: bool
    reasons: tuple[str, ...]  # why it is not ready, or not alive
    models: Mapping[str, bool]
    stubs: Mapping[str, int]  # living processes by model
    restarts: int
    version: str = __version__


class Served(Protocol):
    def model_names(self) -> tuple[str, ...]: ...


class Observed(Protocol):
    """What is asked of a server; `launcher.Server` answers at any time, started or not."""

    restarts: int

    @property
    def repository(self) -> Served: ...

    @property
    def ports(self) -> Ports: ...

    def why_not_ready(self) -> str | None:
        """Without a question to Triton: it starts, restarts, has stopped, or somebody died."""
        ...

    def why_not_alive(self) -> str | None: ...

    def count_stubs(self) -> Mapping[str, int]: ...


class Health:
    """The condition of a server. What Triton says is asked anew twice a second at most; deaths are seen at once."""

    def __init__(
        self,
        server: Observed,
        *,
        ask: Callable[[Ports, str], bool] | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._server, self._ask, self._clock = server, ask or answers_ready, clock
        self._lock = threading.Lock()
        self._models: dict[str, bool] = {}
        self._asked_at = -ASK_TRITON_S

    def condition(self) -> Condition:
        server = self._server
        dead, held_up = server.why_not_alive(), server.why_not_ready()
        models = dict.fromkeys(server.repository.model_names(), False) if held_up or dead else self._ready_models()
        missing = tuple(f"model '{name}' is not ready" for name, ready in models.items() if not ready)
        told = tuple(reason for reason in (dead, held_up) if reason is not None)
        # Somebody may have died while Triton was asked.
        late = server.why_not_ready() if not told else None
        reasons = told or ((late,) if late is not None else missing)
        return Condition(
            ready=not reasons,
            live=dead is None,
            reasons=reasons,
            models=models,
            stubs=server.count_stubs(),
            restarts=server.restarts,
        )

    def _ready_models(self) -> dict[str, bool]:
        with self._lock:
            if self._clock() - self._asked_at >= ASK_TRITON_S:
                names, listening = self._server.repository.model_names(), self._server.ports
                last_s = self._clock() + ROUND_S
                self._models = {name: self._clock() < last_s and self._ask(listening, name) for name in names}
                self._asked_at = self._clock()
            return dict(self._models)


def answers_ready(listening: Ports, model: str) -> bool:
    """Whether Triton says at its HTTP port that it can serve this model."""
    connection = http.client.HTTPConnection(listening.from_here, listening.http, timeout=TRITON_TIMEOUT_S)
    try:
        connection.request("GET", f"/v2/models/{model}/ready")
        return connection.getresponse().status == HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


class HealthServer:
    """Serves the health of `server` on a port until it is closed; a context manager. Port 0 takes a free one.

    A few threads, each with one connection at a time and a deadline for it: nobody who connects and says nothing makes
    another thread, or keeps one for long.
    """

    def __init__(self, server: Observed, port: int = DEFAULT_PORT, host: str = LOOPBACK) -> None:
        self._health = Health(server)
        self._host, self._port = host, port
        self._listener: socket.socket | None = None
        self._threads: list[threading.Thread] = []

    @property
    def url(self) -> str:
        """Where it listens, once it does."""
        return f"http://{self._host}:{self._port}"

    def __enter__(self) -> Self:
        try:
            self._listener = socket.create_server((self._host, self._port), backlog=BACKLOG)
        except OSError as error:
            raise LaunchFailed(
                f"the health port {self._port} of {self._host} cannot be had ({error.strerror})",
                fix="give another --health-port, or 0 to have one chosen",
            ) from error
        self._port = self._listener.getsockname()[1]
        self._threads = [
            threading.Thread(target=self._answer_all, args=(self._listener,), name="proteus-health", daemon=True)
            for _ in range(WORKERS)
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._listener is not None:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # wakes those that wait for a connection
            self._listener.close()
        for thread in self._threads:
            thread.join()

    def _answer_all(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                if listener.fileno() < 0 or not _listens(listener):
                    return
                continue
            with connection, suppress(OSError):
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        method, path = _read_request(connection)
        status, document = self._reply(method, path)
        body = json.dumps(document).encode() + b"\n"
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n"
        )
        head += "Allow: GET, HEAD\r\n" if status is HTTPStatus.METHOD_NOT_ALLOWED else ""
        connection.settimeout(CONNECTION_S)
        connection.sendall(f"{head}\r\n".encode() + (b"" if method == "HEAD" else body))
        connection.shutdown(socket.SHUT_WR)

    def _reply(self, method: str, path: str) -> tuple[HTTPStatus, Mapping[str, object]]:
        if not method:
            return HTTPStatus.BAD_REQUEST, {"error": "this is no request"}
        if method not in ("GET", "HEAD"):
            return HTTPStatus.METHOD_NOT_ALLOWED, {"error": "only GET and HEAD"}
        if path not in PATHS:
            return HTTPStatus.NOT_FOUND, {"error": f"one of {', '.join(PATHS)}"}
        condition = self._health.condition()
        good = condition.live if path == "/live" else condition.ready
        document = asdict(condition) if path == "/" else {path[1:]: good, "reasons": condition.reasons}
        return (HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE), document


def _listens(listener: socket.socket) -> bool:
    try:
        return bool(listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    except OSError:
        return False


def _read_request(connection: socket.socket) -> tuple[str, str]:
    """Method and path without its query; both empty when what comes is no request, too long, or too slow."""
    deadline = monotonic() + CONNECTION_S
    head = b""
    while b"\r\n\r\n" not in head:
        left_s = deadline - monotonic()
        if left_s <= 0 or len(head) > MAX_HEAD_BYTES:
            return "", ""
        connection.settimeout(left_s)
        try:
            part = connection.recv(MAX_HEAD_BYTES)
        except TimeoutError:
            return "", ""
        if not part:
            return "", ""
        head += part
    words = head.partition(b"\r\n")[0].decode("ascii", errors="replace").split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return "", ""
    return words[0], words[1].partition("?")[0]
