"""Answers over HTTP whether this server is ready and alive, for those who start containers and balance load.

Triton says that it is ready when a stub has died; this says so only when every stub lives and every model of the server
is ready, from the moment a death is seen until the restart is over. Three paths, GET and HEAD, one answer a connection.
"""

from __future__ import annotations

import json
import selectors
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from time import monotonic, sleep
from types import TracebackType
from typing import Protocol, Self
from urllib.parse import quote

from proteus import __version__
from proteus.launcher.failure import LaunchFailed
from proteus.launcher.ports import Ports
from proteus.limits_gpu import LOOPBACK

DEFAULT_PORT = 8080
PORT_BESIDE_GATEWAY = 8003  # as [gateway.pools] of deployments/demo.toml has it
WORKERS = 4  # answers for which Triton is asked, at a time
MAX_CONNECTIONS = 64  # whose request is not whole: one more, and the oldest is cut off; as many wait for an answer
BACKLOG = 64
CONNECTION_S = 2.0  # for a request, and for an answer
NO_ROOM_S = 0.05  # until the next try where the system has no more connections
MAX_HEAD_BYTES = 4096
ASK_TRITON_S = 0.5  # between two rounds of questions to Triton, however many ask here
TRITON_TIMEOUT_S = 1.0  # of one model
ROUND_S = 2.0  # of all of them: those that are not asked by then are not ready
END = b"\r\n\r\n"  # of a head
PATHS = ("/", "/ready", "/live")
METHODS = ("GET", "HEAD")


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Of a server at one moment."""

    ready: bool
    live: bool
    reasons: tuple[str, ...]  # why it is not ready, or not alive
    models: Mapping[str, bool]


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


class Asking:
    """One round of questions at Triton's HTTP port, over one connection where Triton keeps it; a context manager."""

    def __init__(self, listening: Ports) -> None:
        self._connection = HTTPConnection(listening.from_here, listening.http, timeout=TRITON_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def __call__(self, model: str) -> bool:
        """Whether Triton says that it can serve this model."""
        try:
            self._connection.request("GET", f"/v2/models/{quote(model)}/ready")
            answer = self._connection.getresponse()
        except (OSError, HTTPException):
            self._connection.close()  # the next question opens it anew
            return False
        if answer.length == 0:
            answer.read()
        else:
            self._connection.close()  # a body may have no end: nobody reads it
        return answer.status == HTTPStatus.OK


class Health:
    """The condition of a server. What Triton says is asked anew twice a second at most; deaths are seen at once."""

    def __init__(
        self,
        server: Observed,
        *,
        asking: Callable[[Ports], AbstractContextManager[Callable[[str], bool]]] = Asking,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._server, self._asking, self._clock = server, asking, clock
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
        return Condition(ready=not reasons, live=dead is None, reasons=reasons, models=models)

    def _ready_models(self) -> dict[str, bool]:
        with self._lock:
            if self._clock() - self._asked_at >= ASK_TRITON_S:
                names, last_s = self._server.repository.model_names(), self._clock() + ROUND_S
                with self._asking(self._server.ports) as is_ready:
                    self._models = {name: self._clock() < last_s and is_ready(name) for name in names}
                self._asked_at = self._clock()
            return dict(self._models)


class HealthServer:
    """Serves the health of `server` on a port until it is closed; a context manager. Port 0 takes a free one.

    One thread reads requests, as they come, of a bounded number of connections: those who connect and say nothing hold
    nobody up, however many they are. It answers for itself what needs no question to Triton, `/live` above all.
    """

    def __init__(self, server: Observed, port: int = DEFAULT_PORT, host: str = LOOPBACK) -> None:
        self._server, self._health = server, Health(server)
        self._host, self._port = host, port
        self._unanswered = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="proteus-health")
        self._close: Callable[[], None] = lambda: None

    @property
    def url(self) -> str:
        """Where it listens, once it does."""
        return f"http://{self._host}:{self._port}"

    @property
    def address(self) -> str:
        """`host:port` for who is on this machine, once it listens."""
        return f"{LOOPBACK if self._host == '0.0.0.0' else self._host}:{self._port}"

    def __enter__(self) -> Self:
        try:
            listener = socket.create_server((self._host, self._port), backlog=BACKLOG)
        except OSError as error:
            raise LaunchFailed(
                f"the health port {self._port} of {self._host} cannot be had ({error.strerror})",
                fix="give another --health-port, or 0 to have one chosen",
            ) from error
        self._port = listener.getsockname()[1]
        listener.setblocking(False)
        end, ended = socket.socketpair()
        thread = threading.Thread(target=self._listen, args=(listener, ended), name="proteus-health", daemon=True)
        thread.start()

        def close() -> None:
            end.close()
            thread.join()
            self._workers.shutdown()

        self._close = close
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _listen(self, listener: socket.socket, ended: socket.socket) -> None:
        """Until the other side of `ended` is closed."""
        with listener, ended, _Requests() as requests:
            requests.watch(listener)
            requests.watch(ended)
            while True:
                for ready in requests.ready():
                    if ready is ended:
                        return
                    if ready is listener:
                        requests.accept(listener)
                    else:
                        self._take(ready, requests.read(ready))
                for late in requests.late():
                    self._take(late, ("", ""))

    def _take(self, connection: socket.socket, request: tuple[str, str] | None) -> None:
        if request is None:
            return
        method, path = request
        connection.settimeout(CONNECTION_S)
        if path not in ("/", "/ready") or method not in METHODS:
            _answer(connection, method, *self._reply_at_once(method, path))
        elif self._unanswered.acquire(blocking=False):
            self._workers.submit(self._tell_condition, connection, method, path)
        else:
            connection.close()

    def _reply_at_once(self, method: str, path: str) -> tuple[HTTPStatus, Mapping[str, object]]:
        if not method:
            return HTTPStatus.BAD_REQUEST, {"error": "this is no request"}
        if method not in METHODS:
            return HTTPStatus.METHOD_NOT_ALLOWED, {"error": "only GET and HEAD"}
        if path not in PATHS:
            return HTTPStatus.NOT_FOUND, {"error": f"one of {', '.join(PATHS)}"}
        dead = self._server.why_not_alive()
        return _status(dead is None), {"live": dead is None, "reasons": [] if dead is None else [dead]}

    def _tell_condition(self, connection: socket.socket, method: str, path: str) -> None:
        try:
            with connection:
                condition = self._health.condition()
                whole = path == "/"
                document = self._whole(condition) if whole else {"ready": condition.ready, "reasons": condition.reasons}
                _answer(connection, method, _status(condition.ready), document)
        finally:
            self._unanswered.release()

    def _whole(self, condition: Condition) -> Mapping[str, object]:
        """With what no probe decides by: to count stubs takes a look at every process of this machine."""
        server = self._server
        return {**asdict(condition), "stubs": server.count_stubs(), "restarts": server.restarts, "version": __version__}


class _Requests:
    """Connections whose request is not whole yet, the oldest first, and the sockets that are watched beside them."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._heads: dict[socket.socket, tuple[float, bytes]] = {}  # deadline, what came

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in self._heads:
            connection.close()
        self._selector.close()

    def watch(self, one: socket.socket) -> None:
        self._selector.register(one, selectors.EVENT_READ)

    def ready(self) -> Iterator[socket.socket]:
        """Waits until one of them can be read, or is late."""
        first_s = next((deadline for deadline, _ in self._heads.values()), None)
        timeout_s = None if first_s is None else max(0.0, first_s - monotonic())
        for key, _ in self._selector.select(timeout_s):
            if isinstance(key.fileobj, socket.socket) and key.fileobj.fileno() >= 0:
                yield key.fileobj

    def accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            return
        except OSError:
            sleep(NO_ROOM_S)
            return
        if len(self._heads) >= MAX_CONNECTIONS:
            oldest = next(iter(self._heads))
            self._leave(oldest)
            oldest.close()
        connection.setblocking(False)
        self.watch(connection)
        self._heads[connection] = monotonic() + CONNECTION_S, b""

    def read(self, connection: socket.socket) -> tuple[str, str] | None:
        """Method and path once they are there, and both empty for what is no request; the connection is the caller's
        then. None while more has to come.
        """
        deadline, head = self._heads[connection]
        try:
            part = connection.recv(MAX_HEAD_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            part = b""
        head += part
        if part and END not in head and len(head) <= MAX_HEAD_BYTES:
            self._heads[connection] = deadline, head
            return None
        self._leave(connection)
        return _parse(head)

    def late(self) -> Iterator[socket.socket]:
        """Those whose time is over; they are the caller's."""
        now = monotonic()
        for connection in [one for one, (deadline, _) in self._heads.items() if deadline <= now]:
            self._leave(connection)
            yield connection

    def _leave(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        del self._heads[connection]


def _parse(head: bytes) -> tuple[str, str]:
    """Method and path without its query; both empty when this is no whole request."""
    words = head.partition(b"\r\n")[0].decode("ascii", errors="replace").split(" ")
    if END not in head or len(words) != 3 or not words[2].startswith("HTTP/1."):
        return "", ""
    return words[0], words[1].partition("?")[0]


def _status(good: bool) -> HTTPStatus:
    return HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE


def _answer(connection: socket.socket, method: str, status: HTTPStatus, document: Mapping[str, object]) -> None:
    """Small enough for the kernel to take it at once, whether it is read or not."""
    body = json.dumps(document).encode() + b"\n"
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n"
    )
    head += "Allow: GET, HEAD\r\n" if status is HTTPStatus.METHOD_NOT_ALLOWED else ""
    with connection, suppress(OSError):
        connection.sendall(f"{head}\r\n".encode() + (b"" if method == "HEAD" else body))
        connection.shutdown(socket.SHUT_WR)
