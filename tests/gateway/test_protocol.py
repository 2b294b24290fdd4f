"""How an answer goes out: its head with what follows it, and by itself where nothing does."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from proteus.gateway.http.protocol import CONTINUE, Line

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


class Transport:
    """Keeps what is written, write by write."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closing = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def writelines(self, pieces: Iterable[bytes]) -> None:
        self.written.append(b"".join(pieces))

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True


@pytest.fixture
def transport() -> Transport:
    return Transport()


@pytest.fixture
def line(transport: Transport) -> Line:
    return Line(transport, transport.close)  # type: ignore[arg-type]


def test_a_head_leaves_with_what_comes_next_answer_by_answer(line: Line, transport: Transport) -> None:
    for _ in range(2):
        line.begin()
        line.write(HEAD)
        line.write(b"a")
        line.write(b"b")
    assert transport.written == [HEAD + b"a", b"b"] * 2


def test_the_body_is_asked_for_at_once(line: Line, transport: Transport) -> None:
    line.write(CONTINUE)
    assert transport.written == [CONTINUE]
    line.write(HEAD)
    line.write(b"a")
    assert transport.written == [CONTINUE, HEAD + b"a"]


def test_a_head_that_nothing_follows_leaves_before_the_connection_is_closed(line: Line, transport: Transport) -> None:
    line.write(HEAD)
    line.close()
    assert (transport.written, transport.closing) == ([HEAD], True)


def test_nothing_is_written_to_a_connection_that_is_gone(line: Line, transport: Transport) -> None:
    line.write(HEAD)
    transport.close()
    line.close()
    assert transport.written == []
