"""Who breaks HTTP's rules is refused, told so in OpenAI's form, and cut off; who takes his time is, too."""

from __future__ import annotations

from collections.abc import Iterator
from time import sleep
from typing import Any

import httpx
import pytest

from proteus.gateway.http import protocol
from tests.client.peer import REPORT, SCRIPTS, Peer, event
from tests.gateway.running import Running, in_front_of, started
from tests.gateway.wire import TIMEOUT_S, connect, error_of, eventually, request, status_of, told, until_closed

CHUNKED = b"POST /v1/cost HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked"
GET = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n"
SHORT_MS = 300
TABLE = {
    "header_timeout_ms": SHORT_MS,
    "body_idle_timeout_ms": SHORT_MS,
    "body_timeout_ms": 3 * SHORT_MS,
    "send_timeout_ms": SHORT_MS,
    "keep_alive_ms": SHORT_MS,
    "max_header_bytes": 4_096,
    "max_body_bytes": 200_000,
    "max_connections": 24,
    "max_connections_per_address": 16,
    "max_json_depth": 8,
}


@pytest.fixture(scope="module")
def strict(peer: Peer) -> Iterator[Running]:
    """A gateway with little patience."""
    with started(in_front_of(peer.url, http=TABLE)) as one:
        yield one


@pytest.fixture
def refused(strict: Running) -> Iterator[None]:
    """Nothing is left open by the test."""
    yield
    assert status_of(told(strict.url, GET + b"Connection: close\r\n\r\n")) == 200
    eventually(lambda: strict.gateway.visits.open == strict.gateway.connections.open == 0)


MALFORMED = {
    "both lengths": CHUNKED + b"\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
    "two lengths": GET + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\na",
    "a list of lengths": GET + b"Content-Length: 1, 1\r\n\r\na",
    "a signed length": GET + b"Content-Length: +1\r\n\r\na",
    "a length out of range": GET + b"Content-Length: 99999999999999999999\r\n\r\na",
    "a folded line": GET + b"X: a\r\n b\r\n\r\n",
    "bare LF": b"GET / HTTP/1.1\nHost: localhost\n\n",
    "bare LF in the head": b"GET / HTTP/1.1\r\nHost: localhost\nX: a\r\n\r\n",
    "bare CR": GET + b"X: a\rY: b\r\n\r\n",
    "a space before the colon": GET + b"X : a\r\n\r\n",
    "a NUL in a value": GET + b"X: a\x00b\r\n\r\n",
    "no colon": GET + b"X\r\n\r\n",
    "two codings": CHUNKED + b", chunked\r\n\r\n0\r\n\r\n",
    "another coding": CHUNKED.replace(b"chunked", b"gzip, chunked") + b"\r\n\r\n0\r\n\r\n",
    "no coding": CHUNKED.replace(b"chunked", b"identity") + b"\r\n\r\n",
    "chunks in HTTP/1.0": CHUNKED.replace(b"HTTP/1.1", b"HTTP/1.0") + b"\r\n\r\n0\r\n\r\n",
    "a hexadecimal chunk": CHUNKED + b"\r\n\r\n0x1\r\na\r\n0\r\n\r\n",
    "a chunk without end": CHUNKED + b"\r\n\r\n1\r\nabc\r\n0\r\n\r\n",
    "a chunk out of range": CHUNKED + b"\r\n\r\nFFFFFFFFFFFFFFFFFF\r\na",
    "LF after a chunk": CHUNKED + b"\r\n\r\n1\na\n0\n\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": GET + b"Host: localhost\r\n\r\n",
    "a host of two lines": b"GET / HTTP/1.1\r\nHost: local host\r\n\r\n",
    "two keys": GET + b"Authorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n",
    "another version": b"GET / HTTP/2.0\r\nHost: localhost\r\n\r\n",
    "the version before all": b"GET /\r\n\r\n",
    "an absolute target": b"GET http://localhost/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "no target": b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a tunnel": b"CONNECT localhost:1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "dots": b"GET /page/../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "encoded dots": b"GET /page/%2e%2e/x HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "an encoded NUL": b"GET /page/a%00.js HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "an encoded line": b"GET /v1/models/a%0d%0aX:%20b HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a backslash": b"GET /page\\x HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a byte that is no ASCII": b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a long target": b"GET /" + b"a" * 3_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a websocket": GET + b"Connection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    "another expectation": GET + b"Expect: money\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "a long head": GET + b"X: " + b"a" * 5_000 + b"\r\n\r\n",
    "a head without end": GET + b"X: " + b"a" * 5_000,
    "many headers": GET + b"".join(b"X-%d: a\r\n" % number for number in range(101)) + b"\r\n",
}


@pytest.mark.parametrize("case", MALFORMED)
@pytest.mark.usefixtures("refused")
def test_what_two_servers_may_read_in_two_ways_is_refused(strict: Running, case: str) -> None:
    answer = told(strict.url, MALFORMED[case])
    assert status_of(answer) == 400
    assert error_of(answer)["code"] == "invalid_request"
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"connection: close" in answer
    assert b"nosniff" in answer


@pytest.mark.usefixtures("refused")
def test_a_head_that_does_not_end_is_waited_for_so_long(strict: Running) -> None:
    answer = told(strict.url, b"GET / HTTP/1.1\r\nHost: local")
    assert (status_of(answer), error_of(answer)["code"]) == (408, "upload_too_slow")
    assert "header_timeout_ms" in error_of(answer)["limit"]


@pytest.mark.usefixtures("refused")
def test_an_answer_may_take_longer_than_a_head(strict: Running, peer: Peer) -> None:
    peer.cancelled.clear()
    before = strict.gateway.connections.refused["head_late"]
    with connect(strict.url) as one:
        one.sendall(request({"model": "demo", "messages": [{"role": "user", "content": "never end"}], "stream": True}))
        assert status_of(one.recv(65_536)) == 200
        sleep(2 * SHORT_MS / 1e3)
        assert strict.gateway.visits.open == 1
    assert strict.gateway.connections.refused["head_late"] == before


@pytest.mark.usefixtures("refused")
def test_who_says_nothing_is_waited_for_so_long(strict: Running) -> None:
    assert status_of(told(strict.url, b"")) == 408


@pytest.mark.usefixtures("refused")
def test_an_idle_connection_is_closed(strict: Running) -> None:
    answer = told(strict.url, b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert status_of(answer) == 200
    assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.usefixtures("refused")
def test_a_body_that_does_not_go_on_is_waited_for_so_long(strict: Running) -> None:
    answer = told(strict.url, request()[:-5])
    assert (status_of(answer), error_of(answer)["code"]) == (408, "upload_too_slow")
    assert "body_idle_timeout_ms" in error_of(answer)["limit"]


@pytest.mark.usefixtures("refused")
def test_a_body_in_drops_is_waited_for_so_long(strict: Running) -> None:
    with connect(strict.url) as one:
        one.sendall(CHUNKED + b"\r\n\r\n")
        one.settimeout(SHORT_MS / 3e3)
        answer = b""
        while not answer:
            one.sendall(b"1\r\n \r\n")
            try:
                answer = one.recv(65_536)
            except TimeoutError:
                continue
        one.settimeout(TIMEOUT_S)
        answer += until_closed(one)
    assert "body_timeout_ms = " in error_of(answer)["limit"]


@pytest.mark.usefixtures("refused")
def test_a_body_that_says_that_it_is_too_large_is_not_read(strict: Running) -> None:
    with connect(strict.url) as one:
        one.sendall(request("a" * 300_000)[:400])
        answer = until_closed(one)
    assert (status_of(answer), error_of(answer)["code"]) == (413, "body_too_large")


@pytest.mark.usefixtures("refused")
def test_a_body_that_becomes_too_large_is_read_no_further(strict: Running) -> None:
    answer = told(
        strict.url, CHUNKED + b"\r\n\r\n" + b"2710\r\n" + b" " * 10_000 + (b"\r\n2710\r\n" + b" " * 10_000) * 30
    )
    assert (status_of(answer), error_of(answer)["code"]) == (413, "body_too_large")


@pytest.mark.usefixtures("refused")
def test_a_client_whose_body_is_refused_reads_why_though_it_sends_on(strict: Running) -> None:
    with httpx.Client(base_url=strict.url, timeout=20) as client:
        answer = client.post("/v1/cost", json={"prompt": "a" * 5_000_000})
    assert answer.json()["error"]["code"] == "body_too_large"


@pytest.mark.parametrize("first", [b"POST /v1/cost HTTP/1.1\r\nConnection: close", b"POST /v1/cost HTTP/1.0"])
@pytest.mark.usefixtures("refused")
def test_a_client_that_wants_one_answer_only_reads_why_its_body_is_refused(strict: Running, first: bytes) -> None:
    head = b"\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 3145728\r\n\r\n"
    with connect(strict.url) as one:
        one.sendall(first + head)
        for _ in range(48):
            one.sendall(b"a" * 65_536)
        answer = b""
        while piece := one.recv(65_536):  # a connection that is reset raises here, or before
            answer += piece
    assert (status_of(answer), error_of(answer)["code"]) == (413, "body_too_large")


@pytest.mark.usefixtures("refused")
def test_who_sends_on_and_on_after_its_answer_is_cut_off(strict: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MAX_DROPPED_BYTES", 1 << 20)
    monkeypatch.setattr(protocol, "LINGER_S", 2 * TIMEOUT_S)  # it is not for the time
    with connect(strict.url) as one:
        one.sendall(request("a" * 300_000)[:400])
        with pytest.raises(OSError, match="reset|Broken pipe"):
            one.sendall(b"a" * (64 << 20))


@pytest.mark.parametrize("sent", [b"\x00\r\n", request("a" * 300_000)[:400]])
@pytest.mark.usefixtures("refused")
def test_who_stays_after_its_last_answer_is_cut_off(
    strict: Running, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(protocol, "LINGER_S", 0.1)
    with connect(strict.url) as one:
        one.sendall(sent)
        assert status_of(one.recv(65_536)) in (400, 413)
        eventually(lambda: strict.gateway.connections.open == 0)


@pytest.mark.usefixtures("refused")
def test_a_body_of_chunk_extensions_is_read_no_further(strict: Running) -> None:
    with connect(strict.url) as one:
        one.sendall(CHUNKED + b"\r\n\r\n1;")
        try:
            for _ in range(64):
                one.sendall(b"a" * 65_536)
        except OSError:
            pass
        answer = until_closed(one)
    assert status_of(answer) in (0, 400)
    assert strict.gateway.connections.refused["framing"] > 0


@pytest.mark.usefixtures("refused")
@pytest.mark.parametrize("second", [request(), b"GET / HTTP/1.1\r\n", b"\x00\x01", b"GET / HTTP/1.1\nx"])
def test_who_sends_a_second_request_before_the_first_answer_gets_the_first_answer_only(
    strict: Running, second: bytes
) -> None:
    answer = told(strict.url, request() + second)
    assert status_of(answer) == 200
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"one two" in answer


@pytest.mark.usefixtures("refused")
def test_a_trailer_is_no_header(strict: Running) -> None:
    body = b"\r\n\r\n2\r\n{}\r\n0\r\nContent-Type: text/plain\r\nAuthorization: Bearer x\r\n\r\n"
    with connect(strict.url) as one:
        one.sendall(CHUNKED + body)
        assert status_of(one.recv(65_536)) == 400  # of the document: it names no model


@pytest.mark.usefixtures("refused")
def test_the_body_is_asked_for_where_a_client_waits_for_that(strict: Running) -> None:
    head, _, body = request(None, "Expect: 100-continue").partition(b"\r\n\r\n")
    with connect(strict.url) as one:
        one.sendall(head + b"\r\n\r\n")
        assert one.recv(1_024) == b"HTTP/1.1 100 Continue\r\n\r\n"
        one.sendall(body)
        assert status_of(one.recv(65_536)) == 200


@pytest.mark.usefixtures("refused")
def test_nobody_is_asked_for_a_body_that_would_be_refused(strict: Running) -> None:
    head, *_ = request("a" * 300_000, "Expect: 100-continue").partition(b"\r\n\r\n")
    assert status_of(told(strict.url, head + b"\r\n\r\n")) == 413


@pytest.mark.usefixtures("refused")
def test_who_does_not_read_is_cut_off(strict: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def flood(*_: object) -> Iterator[Any]:
        yield from (event("a" * 100_000, (1,)) for _ in range(200))

    monkeypatch.setitem(SCRIPTS, "flood", flood)
    before = strict.gateway.connections.refused["not_read"]
    with connect(strict.url, receive_buffer_bytes=4_096) as one:
        one.sendall(request({"model": "demo", "messages": [{"role": "user", "content": "flood"}], "stream": True}))
        eventually(lambda: strict.gateway.connections.refused["not_read"] > before)
        assert len(until_closed(one)) < 10_000_000


@pytest.mark.usefixtures("refused")
def test_who_reads_slowly_is_not_taken_for_who_does_not(strict: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the kernel's own buffer in `send_timeout_ms`, from a client whose own takes little."""
    monkeypatch.setitem(SCRIPTS, "flood", lambda *_: iter((event("a" * 12_000_000, (1,), REPORT),)))
    before = strict.gateway.connections.refused["not_read"]
    with connect(strict.url, receive_buffer_bytes=65_536) as one:
        one.sendall(request({"model": "demo", "messages": [{"role": "user", "content": "flood"}]}))
        for _ in range(40):
            assert one.recv(65_536)
            sleep(SHORT_MS / 10e3)
    assert strict.gateway.connections.refused["not_read"] == before


@pytest.mark.usefixtures("refused")
def test_connections_of_one_address_are_counted(strict: Running) -> None:
    ones = [connect(strict.url) for _ in range(TABLE["max_connections_per_address"])]
    try:
        answer = told(strict.url, b"")
    finally:
        for one in ones:
            one.close()
    assert (status_of(answer), error_of(answer)["code"]) == (429, "queue_full")
    assert b"retry-after: 1" in answer


@pytest.mark.usefixtures("refused")
def test_whose_body_is_bad_has_left(strict: Running) -> None:
    def left() -> float:
        labels = {"endpoint": "cost", "model": "", "outcome": "client_gone"}
        return strict.gateway.metrics.registry.get_sample_value("proteus_gateway_requests_total", labels) or 0

    before = left()
    with connect(strict.url) as one:
        one.sendall(CHUNKED + b"\r\n\r\n1\r\nabc")
        assert status_of(one.recv(65_536)) == 400
        eventually(lambda: left() == before + 1)


def test_every_reason_is_counted(strict: Running) -> None:
    counted = {reason for reason, count in strict.gateway.connections.refused.items() if count}
    assert counted == {*strict.gateway.connections.refused} - {"connections"}
