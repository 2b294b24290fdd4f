"""Ready and alive, over HTTP: what is said of a server in every state, and what nobody can do to who says it."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from proteus.launcher import LaunchFailed, Server
from proteus.launcher.health import (
    ASK_TRITON_S,
    MAX_HEAD_BYTES,
    ROUND_S,
    TRITON_TIMEOUT_S,
    WORKERS,
    Asking,
    Health,
    HealthServer,
    Observed,
)
from proteus.launcher.ports import Ports

DIED = "a stub of 'llm' died"


@dataclass
class Told:
    """A server of which a test says everything."""

    models: tuple[str, ...] = ("chat", "llm")
    restarts: int = 0
    ports: Ports = Ports(http=1, grpc=2, metrics=3)
    not_ready: str | None = None
    not_alive: str | None = None
    stubs: dict[str, int] = field(default_factory=lambda: {"chat": 1, "llm": 1})

    def why_not_ready(self) -> str | None:
        return self.not_ready

    def why_not_alive(self) -> str | None:
        return self.not_alive

    def count_stubs(self) -> dict[str, int]:
        return self.stubs

    @property
    def repository(self) -> Told:
        return self

    def model_names(self) -> tuple[str, ...]:
        return self.models


@dataclass
class Triton:
    """Says of which models it is ready, and counts the questions."""

    ready: set[str]
    asked: int = 0

    def __call__(self, listening: Ports) -> AbstractContextManager[Callable[[str], bool]]:
        return nullcontext(self.says)

    def says(self, model: str) -> bool:
        self.asked += 1
        return model in self.ready


def health(server: Observed, *ready: str) -> Health:
    return Health(server, asking=Triton(set(ready)))


@pytest.mark.parametrize(
    ("server", "ready_models", "ready", "live", "reasons"),
    [
        (Told(), ("chat", "llm"), True, True, ()),
        (Told(), ("chat",), False, True, ("model 'llm' is not ready",)),
        (Told(), (), False, True, ("model 'chat' is not ready", "model 'llm' is not ready")),
        (Told(not_ready=DIED), ("chat", "llm"), False, True, (DIED,)),
        (Told(not_alive="gave up"), ("chat", "llm"), False, False, ("gave up",)),
        (Told(not_alive="gave up", not_ready=DIED), ("chat", "llm"), False, False, ("gave up", DIED)),
    ],
    ids=["all well", "a model missing", "no model", "a dead stub", "given up", "both"],
)
def test_ready_needs_every_model_and_every_stub(
    server: Told, ready_models: tuple[str, ...], ready: bool, live: bool, reasons: tuple[str, ...]
) -> None:
    condition = health(server, *ready_models).condition()
    assert (condition.ready, condition.live, condition.reasons) == (ready, live, reasons)


def test_no_model_is_called_ready_while_the_server_is_not() -> None:
    assert health(Told(not_ready="restarting"), "chat", "llm").condition().models == {"chat": False, "llm": False}


def test_triton_is_asked_twice_a_second_at_most_and_a_death_is_seen_between() -> None:
    now, server, triton = [100.0], Told(), Triton({"chat", "llm"})
    asked = Health(server, asking=triton, clock=lambda: now[0])
    assert [asked.condition().ready for _ in range(50)] == [True] * 50
    assert triton.asked == 2
    server.not_ready = DIED
    assert not asked.condition().ready
    server.not_ready = None
    triton.ready = {"chat"}
    now[0] += ASK_TRITON_S
    assert asked.condition().reasons == ("model 'llm' is not ready",)


def test_a_triton_that_hangs_is_not_asked_for_every_model() -> None:
    now = [100.0]

    def hang(model: str) -> bool:
        now[0] += TRITON_TIMEOUT_S
        return False

    asked = Health(Told(models=tuple("abcdefgh")), asking=lambda _: nullcontext(hang), clock=lambda: now[0])
    assert not asked.condition().ready
    assert now[0] - 100.0 <= ROUND_S + TRITON_TIMEOUT_S


class DiesMeanwhile(Told):
    """Dies while Triton is asked, which still says that all is well."""

    def why_not_ready(self) -> str | None:
        before, self.not_ready = self.not_ready, DIED
        return before


def test_who_dies_while_triton_is_asked_is_not_ready() -> None:
    condition = health(DiesMeanwhile(), "chat", "llm").condition()
    assert (condition.ready, condition.reasons) == (False, (DIED,))


EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


@contextmanager
def answering(*answers: bytes) -> Iterator[tuple[Ports, list[int]]]:
    """A Triton with these answers, that closes a connection whose answer is empty; and how many questions came over
    each connection.
    """
    left, asked = list(answers), list[int]()

    def serve() -> None:
        while left:
            connection, _ = listener.accept()
            asked.append(0)
            with connection:
                while left and connection.recv(4096):
                    asked[-1] += 1
                    if not (answer := left.pop(0)):
                        break
                    connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield Ports(http=listener.getsockname()[1], grpc=1, metrics=1), asked
        thread.join(10)


def test_a_round_of_questions_takes_one_connection() -> None:
    no = EMPTY.replace(b"200 OK", b"400 Bad Request")
    with answering(EMPTY, no, EMPTY) as (listening, asked), Asking(listening) as is_ready:
        assert [is_ready(model) for model in ("a", "b", "c")] == [True, False, True]
    assert asked == [3]


@pytest.mark.parametrize(
    ("answer", "ready"),
    [
        (b"", False),
        (b'HTTP/1.1 400 Bad Request\r\nContent-Length: 20\r\n\r\n{"error":"HTTP/1.1 200', False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", True),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\nConnection: Close\r\n\r\n", True),
        (b"ICY 200 OK\r\n\r\n", False),
    ],
    ids=["none", "no, and why", "a body", "chunks", "the last one here", "no HTTP"],
)
def test_a_connection_whose_next_bytes_may_be_anything_is_left(answer: bytes, ready: bool) -> None:
    with answering(answer, EMPTY) as (listening, asked), Asking(listening) as is_ready:
        assert [is_ready(model) for model in ("a", "b")] == [ready, True]
    assert asked == [1, 1]


def test_nobody_at_the_port_is_no() -> None:
    with answering() as (listening, _):
        pass
    with Asking(listening) as is_ready:
        assert not is_ready("a")


def test_a_triton_that_takes_too_long_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proteus.launcher.health.TRITON_TIMEOUT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with Asking(Ports(http=port, grpc=1, metrics=1)) as is_ready:
            assert not is_ready("a")


def test_a_server_that_was_never_started_is_alive_and_not_ready(tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "config.pbtxt").write_text("")
    condition = Health(Server.for_repository(tmp_path)).condition()
    assert (condition.live, condition.ready, condition.models) == (True, False, {"toy": False})
    assert condition.reasons == ("the server is not running",)


@pytest.fixture
def told() -> Told:
    return Told(models=())


@pytest.fixture
def served(told: Told) -> Iterator[HealthServer]:
    with HealthServer(told, port=0) as server:
        yield server


def get(server: HealthServer, path: str, method: str = "GET") -> tuple[int, Any, dict[str, str]]:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=5)
    connection.request(method, path)
    response = connection.getresponse()
    text = response.read()
    connection.close()
    return response.status, json.loads(text) if text else None, dict(response.getheaders())


def raw(server: HealthServer, sent: bytes, *, close: bool = True) -> bytes:
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        try:
            connection.sendall(sent)
            if close:
                connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(4096), b""))
        except OSError:  # it was cut off
            return b""


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    ("not_ready", "not_alive", "path", "status"),
    [
        (None, None, "/ready", 200),
        (None, None, "/live", 200),
        (None, None, "/", 200),
        (None, None, "/ready?verbose", 200),
        (DIED, None, "/ready", 503),
        (DIED, None, "/live", 200),
        (DIED, None, "/", 503),
        (None, "gave up", "/live", 503),
        (None, None, "/metrics", 404),
        (None, None, "/ready/", 404),
    ],
)
def test_paths_and_their_status(
    served: HealthServer,
    told: Told,
    method: str,
    not_ready: str | None,
    not_alive: str | None,
    path: str,
    status: int,
) -> None:
    told.not_ready, told.not_alive = not_ready, not_alive
    answered, document, headers = get(served, path, method)
    assert answered == status
    assert (document is None) == (method == "HEAD")
    assert set(headers) == {"Content-Type", "Content-Length", "Cache-Control", "Connection"}
    assert int(headers["Content-Length"]) > 0


def test_an_answer_says_why(served: HealthServer, told: Told) -> None:
    told.not_ready, told.restarts = DIED, 3
    assert get(served, "/ready")[1] == {"ready": False, "reasons": [DIED]}
    whole = get(served, "/")[1]
    assert (whole["restarts"], whole["stubs"], whole["live"]) == (3, {"chat": 1, "llm": 1}, True)
    assert whole["version"]


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"POST /ready HTTP/1.1\r\n\r\n", b"405"),
        (b"BREW /ready HTTP/1.1\r\n\r\n", b"405"),
        (b"GET /ready\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\r\n\r\n", b"400"),
        (b"GET /ready HTTP/1.1\r\n", b"400"),
        (b"", b"400"),
    ],
    ids=["POST", "a method of its own", "HTTP/0.9", "TLS", "half a request", "nothing"],
)
def test_what_is_no_request_is_refused(served: HealthServer, sent: bytes, status: bytes) -> None:
    assert raw(served, sent).split(b" ")[1] == status


def test_a_head_without_end_is_cut_off(served: HealthServer) -> None:
    answer = raw(served, b"GET /ready HTTP/1.1\r\nX: " + b"a" * (4 * MAX_HEAD_BYTES))
    assert answer == b"" or answer.split(b" ")[1] == b"400"
    assert get(served, "/live")[0] == 200


def address(server: HealthServer) -> tuple[str, int]:
    host, _, port = server.url.removeprefix("http://").partition(":")
    return host, int(port)


def test_those_who_connect_and_say_nothing_delay_nobody(served: HealthServer) -> None:
    """A probe that waits for them would end a healthy server."""
    threads = threading.active_count()
    silent = [socket.create_connection(address(served)) for _ in range(40)]
    try:
        silent[0].sendall(b"GET /live HTTP/1.1\r\n")
        started = monotonic()
        assert get(served, "/live")[0] == 200
        assert get(served, "/ready")[0] == 200
        assert monotonic() - started < 1.0
        assert threading.active_count() <= threads + WORKERS
    finally:
        for connection in silent:
            connection.close()


def test_one_connection_too_many_costs_the_oldest_that_has_said_nothing(
    served: HealthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proteus.launcher.health.MAX_CONNECTIONS", 4)
    silent = [socket.create_connection(address(served), timeout=5) for _ in range(5)]
    try:
        assert silent[0].recv(1) == b""
        assert get(served, "/live")[0] == 200
        assert silent[1].recv(1) == b""
        silent[4].sendall(b"GET /live HTTP/1.1\r\n\r\n")
        assert silent[4].recv(12) == b"HTTP/1.1 200"
    finally:
        for connection in silent:
            connection.close()


def test_who_takes_too_long_is_told_so(served: HealthServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proteus.launcher.health.CONNECTION_S", 0.2)
    assert raw(served, b"GET /li", close=False).split(b" ")[1] == b"400"


def test_a_triton_that_hangs_keeps_nobody_from_hearing_that_the_launcher_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = threading.Event()
    monkeypatch.setattr(Asking, "__call__", lambda self, model: hangs.wait(5))
    with HealthServer(Told(models=("llm",)), port=0) as server:
        asking = [socket.create_connection(address(server), timeout=5) for _ in range(3 * WORKERS)]
        try:
            for connection in asking:
                connection.sendall(b"GET /ready HTTP/1.1\r\n\r\n")
            started = monotonic()
            assert get(server, "/live")[0] == 200
            assert monotonic() - started < 1.0
            hangs.set()
            assert [connection.recv(12) for connection in asking] == [b"HTTP/1.1 200"] * len(asking)
        finally:
            hangs.set()
            for connection in asking:
                connection.close()


def test_a_taken_port_is_named(served: HealthServer, told: Told) -> None:
    port = int(served.url.rpartition(":")[2])
    with pytest.raises(LaunchFailed, match=rf"health port {port} .*Address already in use.*--health-port"):
        HealthServer(told, port).__enter__()


def test_a_closed_one_answers_no_more_and_leaves_no_thread(told: Told) -> None:
    threads = threading.active_count()
    with HealthServer(told, port=0) as server:
        assert get(server, "/live")[0] == 200
    assert threading.active_count() == threads
    with pytest.raises(ConnectionRefusedError):
        get(server, "/live")
