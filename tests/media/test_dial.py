from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Sequence
from typing import Any

import httpcore
import pytest

from proteus.errors import FetchFailed
from proteus.media.dial import MAX_FRAMING_BYTES, MAX_HEAD_BYTES, CheckedBackend, CountedStream, resolve_by_system
from tests.media.hostile import limits_with


class Dialler(httpcore.AsyncMockBackend):
    """Writes down what it is asked to dial; refuses what is in `dead`."""

    def __init__(self, *dead: str, buffer: Sequence[bytes] = ()) -> None:
        super().__init__(list(buffer))
        self.dialled: list[tuple[str, int]] = []
        self._dead = dead

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        self.dialled.append((host, port))
        if host in self._dead:
            raise httpcore.ConnectError
        return await super().connect_tcp(host, port)


def dial(dialler: Dialler, *addresses: str, **changes: Any) -> httpcore.AsyncNetworkStream:
    async def resolve(host: str, port: int) -> Sequence[str]:
        assert (host, port) == ("cdn.test", 443)
        return addresses

    return asyncio.run(CheckedBackend(resolve, limits_with(**changes), dialler).connect_tcp("cdn.test", 443))


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "127.0.0.1"])
def test_the_checked_address_is_dialled_and_not_the_name(address: str) -> None:
    dialler = Dialler()
    dial(dialler, address)
    assert dialler.dialled == [(address, 443)]


def test_the_next_address_is_dialled_when_one_does_not_answer() -> None:
    dialler = Dialler("2606:4700::1111")
    dial(dialler, "2606:4700::1111", "8.8.8.8", "1.1.1.1")
    assert [address for address, _ in dialler.dialled] == ["2606:4700::1111", "8.8.8.8"]


def test_none_answers() -> None:
    with pytest.raises(httpcore.ConnectError):
        dial(Dialler("8.8.8.8", "1.1.1.1"), "8.8.8.8", "1.1.1.1")


@pytest.mark.parametrize("addresses", [[], ["8.8.8.8", "10.0.0.1"], ["8.8.8.8", "::1"], ["8.8.8.8", "nonsense"]])
def test_nothing_is_dialled_when_one_address_is_not_allowed(addresses: list[str]) -> None:
    dialler = Dialler()
    with pytest.raises(FetchFailed):
        dial(dialler, *addresses)
    assert dialler.dialled == []


def test_a_resolver_that_hangs_has_the_time_to_connect() -> None:
    async def hang(host: str, port: int) -> Sequence[str]:
        await asyncio.Event().wait()
        return ()

    with pytest.raises(TimeoutError):
        asyncio.run(CheckedBackend(hang, limits_with(connect_timeout_ms=20), Dialler()).connect_tcp("cdn.test", 443))


def test_a_stream_gives_the_head_and_then_what_was_allowed() -> None:
    async def scenario() -> tuple[int, int]:
        stream = CountedStream(httpcore.AsyncMockStream([b"x" * 1000] * 1000), 0)
        head = await drain(stream)
        stream.allow_body(10_000)
        return head, await drain(stream)

    async def drain(stream: CountedStream) -> int:
        num_bytes = 0
        try:
            while True:
                num_bytes += len(await stream.read(65_536))
        except FetchFailed:
            return num_bytes

    head, body = asyncio.run(scenario())
    assert MAX_HEAD_BYTES <= head < MAX_HEAD_BYTES + 1000  # the mock gives its pieces whole
    assert 10_000 + MAX_FRAMING_BYTES <= body < 11_000 + MAX_FRAMING_BYTES


def test_the_system_gives_every_address(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("2606:4700::1111", 443, 0, 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("8.8.8.8", 443)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_options: found)
    assert asyncio.run(resolve_by_system("cdn.test", 443)) == ("2606:4700::1111", "8.8.8.8")


def test_the_system_knows_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_args: object, **_options: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert asyncio.run(resolve_by_system("cdn.test", 443)) == ()
