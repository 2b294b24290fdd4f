"""Who is answered, who has left, and what every answer carries."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import httpx
import pytest

from proteus.gateway import run
from proteus.gateway.app import CHAT, COST, IMAGES
from proteus.gateway.http.presence import Answering
from tests.client.peer import REPORT, SCRIPTS, Peer, event
from tests.gateway.running import Running, in_front_of, started
from tests.gateway.wire import ASKED, connect, eventually, request, status_of, told, until_closed

NO_KEEPING = httpx.Limits(max_keepalive_connections=0)  # a connection that is left open would be counted
CROWD = 150
LONG = 8_000_000  # bytes: no kernel takes them from us before they are read
NEVER = {"model": "demo", "messages": [{"role": "user", "content": "never end"}], "stream": True}


@pytest.fixture(scope="module")
def running(peer: Peer) -> Iterator[Running]:
    with started(in_front_of(peer.url, routing={"drain_ms": 400})) as one:
        yield one


@pytest.fixture(scope="module")
def web(running: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=running.url, timeout=30, limits=NO_KEEPING) as client:
        yield client


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/nothing", 404, "not_found"),
        ("POST", "/v1/models/", 404, "not_found"),
        ("GET", CHAT, 405, "method_not_allowed"),
        ("OPTIONS", CHAT, 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
        ("GET", "/v1/%0", 404, "not_found"),
        ("GET", "/docs", 404, "not_found"),
    ],
)
def test_what_is_not_there_is_told_as_every_refusal(
    web: httpx.Client, method: str, path: str, status: int, code: str
) -> None:
    answer = web.request(method, path)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, code)
    assert error["fix"]
    assert ("allow" in answer.headers) == (status == 405)


def test_every_path_that_is_posted_to_is_answered_without_the_framework(web: httpx.Client) -> None:
    paths = web.get("/openapi.json").json()["paths"]
    assert {path for path, told in paths.items() if "post" in told} == {CHAT, COST, IMAGES}


@pytest.mark.parametrize("path", ["/health/live", "/health/ready", "/"])
def test_a_head_is_answered_without_a_body(web: httpx.Client, path: str) -> None:
    answer = web.head(path)
    assert (answer.status_code, answer.content) == (200, b"")


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/"), ("GET", "/health/live"), ("GET", "/v1/models"), ("GET", "/no"), ("POST", CHAT)]
)
def test_every_answer_has_its_headers(web: httpx.Client, method: str, path: str) -> None:
    answer = web.request(method, path, json=ASKED if method == "POST" else None)
    headers = answer.headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "no-referrer"
    assert len(headers["x-request-id"]) == 32
    assert "server" not in headers
    assert "access-control-allow-origin" not in headers
    assert len(headers.get_list("content-security-policy")) == 1


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "[::2]"])
def test_a_name_that_is_not_ours_is_refused(web: httpx.Client, host: str) -> None:
    answer = web.get("/v1/models", headers={"host": host})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "not_allowed")
    assert web.get("/health/ready", headers={"host": host}).status_code == 200  # probes ask by address


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:8090", "[::1]:8090", "[::1]"])
def test_a_name_that_is_ours_is_served(web: httpx.Client, host: str) -> None:
    assert web.get("/v1/models", headers={"host": host}).status_code == 200


def test_a_page_of_others_may_not_try_methods_either(web: httpx.Client) -> None:
    assert web.request("DELETE", "/v1/models", headers={"origin": "http://evil.example"}).status_code == 403


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://localhost:3000"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"origin": "http://localhost:8090"}, 200),
        ({"origin": "https://localhost:8090", "sec-fetch-site": "same-origin"}, 200),
        ({}, 200),
    ],
)
def test_only_our_own_page_may_ask(web: httpx.Client, headers: dict[str, str], status: int) -> None:
    answer = web.post(CHAT, json=ASKED, headers={"host": "localhost:8090", **headers})
    assert answer.status_code == status


def test_who_leaves_a_stream_is_noticed_at_once(running: Running, peer: Peer) -> None:
    peer.cancelled.clear()
    with connect(running.url) as one:
        one.sendall(request(NEVER))
        assert status_of(one.recv(65_536)) == 200
        assert running.gateway.visits.open == 1
    assert peer.cancelled.wait(10)
    eventually(lambda: running.gateway.visits.open == 0)


def test_no_task_is_left_of_a_hundred_that_leave(running: Running) -> None:
    before = len(asyncio.all_tasks(running.loop))
    for number in range(100):
        with connect(running.url) as one:
            sent = request(NEVER)
            one.sendall(sent[: len(sent) * number // 100])
    eventually(lambda: running.gateway.visits.open == running.gateway.connections.open == 0)
    eventually(lambda: len(asyncio.all_tasks(running.loop)) <= before)


def test_a_crowd_at_the_door_is_taken_in_bit_by_bit(running: Running) -> None:
    """Between two turns of everybody else."""
    opened: list[int] = []

    def look() -> None:
        opened.append(running.gateway.connections.open)
        if opened[-1] < CROWD:
            running.loop.call_soon(look)

    may_go_on = threading.Event()
    running.loop.call_soon_threadsafe(may_go_on.wait)
    with ExitStack() as crowd:
        try:
            for _ in range(CROWD):
                crowd.enter_context(connect(running.url))
            running.loop.call_soon_threadsafe(look)
        finally:
            may_go_on.set()
        eventually(lambda: bool(opened) and opened[-1] >= CROWD)
    assert max(after - before for before, after in pairwise(opened)) <= 32


class Probe:
    """What an ASGI server would be told, by an endpoint of ours, without one."""

    def __init__(self, running: Running) -> None:
        self.gateway = running.gateway
        self.sent: list[Any] = []
        self.left = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    async def ask(self, endpoint: Any) -> None:
        scope: Any = {"type": "http", "method": "GET", "path": "/x", "headers": [], "client": ("127.0.0.1", 1)}
        await Answering(self.gateway, endpoint)(scope, self.receive, self.send)


def test_what_fails_is_told_without_its_cause_and_logged_with_it(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    async def endpoint(*_: Any) -> None:
        raise KeyError("secret")

    async def scenario() -> bytes:
        probe = Probe(running)
        await probe.ask(endpoint)
        return b"".join(message.get("body", b"") for message in probe.sent)

    told = asyncio.run(scenario())
    assert b"internal" in told
    assert b"secret" not in told
    assert "secret" in caplog.text


def test_a_failure_while_the_client_leaves_is_logged(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    async def endpoint(*_: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise KeyError("cause")

    async def scenario() -> list[Any]:
        probe = Probe(running)
        probe.left.set()
        await probe.ask(endpoint)
        return probe.sent

    assert asyncio.run(scenario()) == []
    assert "cause" in caplog.text


def test_the_end_of_the_process_is_not_taken_for_the_clients(running: Running) -> None:
    ended: list[str] = []

    async def endpoint(*_: Any) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("work")
            raise

    async def scenario() -> None:
        asking = asyncio.create_task(Probe(running).ask(endpoint))
        await asyncio.sleep(0.01)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    asyncio.run(scenario())
    assert ended == ["work"]


def test_what_is_done_after_the_answer_is_done_to_its_end(running: Running) -> None:
    done: list[str] = []

    async def endpoint(_: Any, __: Any, ___: bytes, out: Any) -> None:
        await out.json({})
        probe.left.set()
        await asyncio.sleep(0.05)
        done.append("books")

    async def scenario() -> None:
        nonlocal probe
        probe = Probe(running)
        await probe.ask(endpoint)

    probe: Any = None
    asyncio.run(scenario())
    assert done == ["books"]


def test_a_gateway_that_stops_finishes_what_is_open_and_takes_nothing_new(
    peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    """The answer that is open never ends: it is ended with an error after `drain_ms`."""
    peer.cancelled.clear()
    with started(in_front_of(peer.url, routing={"drain_ms": 400})) as one, ExitStack() as closing:
        streaming = closing.enter_context(connect(one.url))
        streaming.sendall(request(NEVER))
        assert status_of(streaming.recv(65_536)) == 200
        uploading = closing.enter_context(connect(one.url))
        uploading.sendall(request()[:-3])
        eventually(lambda: one.gateway.visits.open == 2)
        one.stop()
        eventually(lambda: one.gateway.visits.draining)
        late = told(one.url, request(None, "Connection: close"))
        assert status_of(late) == 503
        assert b'"draining"' in late
        assert b"retry-after: 5" in late
        going = closing.enter_context(connect(one.url))
        going.sendall(request())  # who would keep its connection is told to ask another gateway
        assert b"connection: close" in until_closed(going)
        assert status_of(told(one.url, b"GET /health/ready HTTP/1.0\r\nHost: localhost\r\n\r\n")) == 503
        assert status_of(told(one.url, b"GET /health/live HTTP/1.0\r\nHost: localhost\r\n\r\n")) == 200
        assert b'"draining"' in until_closed(streaming)
        assert b'"draining"' in until_closed(uploading)
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.WARNING] == []


def test_a_gateway_that_stops_waits_for_who_still_reads_its_answer(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "CLOSE_S", 0.1)
    monkeypatch.setitem(SCRIPTS, "long", lambda *_: iter((event("a" * LONG, (1,), REPORT),)))
    with (
        started(in_front_of(peer.url)) as one,
        connect(one.url, receive_buffer_bytes=4_096) as reading,
        connect(one.url, receive_buffer_bytes=4_096) as hanging,
    ):
        for each in (reading, hanging):
            each.sendall(request({"model": "demo", "messages": [{"role": "user", "content": "long"}]}))
            assert status_of(each.recv(1_024)) == 200
        eventually(lambda: one.gateway.visits.open == 0)
        one.stop()
        time.sleep(0.5)
        reading.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        assert len(until_closed(reading)) > LONG - 1_024
        assert one.gateway.connections.open == 1
        one.stop()  # who does not read is not waited for any longer
        eventually(lambda: one.gateway.connections.open == 0)


def test_who_does_not_read_is_ended_without_a_word_in_the_log(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(run, "CLOSE_S", 0.1)
    monkeypatch.setitem(SCRIPTS, "flood", lambda *_: (event("a" * 100_000, (1,)) for _ in range(200)))
    with started(in_front_of(peer.url, routing={"drain_ms": 100})) as one, connect(one.url) as hanging:
        flood = {"model": "demo", "messages": [{"role": "user", "content": "flood"}], "stream": True}
        hanging.sendall(request(flood))
        assert status_of(hanging.recv(1_024)) == 200
        one.stop()
        eventually(lambda: one.gateway.connections.open == 0)
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.WARNING] == []
