"""A web server on a free loopback port that does to a fetcher whatever a play says, and counts what it got rid of."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from proteus.limits import FetchLimits

REMOTE = "words-of-the-remote"  # in everything that the server says, never in an error of ours
OK = "HTTP/1.1 200 OK"
SEND_BUFFER_BYTES = 16_384  # so that little is counted that nobody has read


def limits_with(**changes: Any) -> FetchLimits:
    allowed = {
        "hosts": ["cdn.test", "*.cdn.test"],
        "schemes": ["http", "https"],
        "ports": [80, 443],
        "private_networks": ["127.0.0.0/8"],
        "max_redirects": 2,
        "connect_timeout_ms": 5_000,
        "total_timeout_ms": 20_000,
        "max_at_once": 4,
    }
    return FetchLimits.model_validate(allowed | changes)


@dataclass
class Visit:
    """One connection of a client."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    head: str = ""  # of the request
    sent_bytes: int = 0
    gone: asyncio.Event = field(default_factory=asyncio.Event)  # the client has closed the connection

    async def send(self, data: bytes) -> None:
        for start in range(0, len(data), SEND_BUFFER_BYTES):
            piece = data[start : start + SEND_BUFFER_BYTES]
            self.writer.write(piece)
            await self.writer.drain()
            self.sent_bytes += len(piece)

    async def stay(self) -> None:
        """Say nothing more until the client leaves."""
        while await self.reader.read(65_536):
            pass


Play = Callable[[Visit], Awaitable[None]]


@dataclass
class Hostile:
    """`visits` in the order of their coming."""

    port: int
    visits: list[Visit]


@asynccontextmanager
async def hostile(
    play: Play, *, host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None, listens: bool = True
) -> AsyncIterator[Hostile]:
    """Serve `play` to every connection, after its request unless `listens` is false."""
    visits: list[Visit] = []
    tasks: list[asyncio.Task[None]] = []

    async def serve(visit: Visit) -> None:
        try:
            if listens:
                visit.head = (await visit.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            await play(visit)
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client has left
        finally:
            visit.writer.transport.abort()
        visit.gone.set()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(SEND_BUFFER_BYTES)
        visits.append(Visit(reader, writer))
        tasks.append(asyncio.create_task(serve(visits[-1])))

    listener = socket.create_server((host, port))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    server = await asyncio.start_server(begin, sock=listener, ssl=tls)
    try:
        yield Hostile(listener.getsockname()[1], visits)
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for visit in visits:
            visit.writer.transport.abort()  # of a task that was cancelled before it began, too
        await asyncio.sleep(0)


def answer(status: str = OK, *headers: str, body: bytes = b"", then: Play | None = None) -> Play:
    """A status line, headers and a body as they are written here, right or wrong; `then` goes on."""

    async def play(visit: Visit) -> None:
        lines = [status, f"X-Words: {REMOTE}", *headers, "", ""]
        await visit.send("\r\n".join(lines).encode("latin-1") + body)
        if then is not None:
            await then(visit)
        else:
            visit.writer.close()
            await visit.writer.wait_closed()

    return play


def redirect(place: str, *headers: str, status: int = 302) -> Play:
    return answer(f"HTTP/1.1 {status} {REMOTE}", f"Location: {place}", "Content-Length: 0", *headers)


def raw(data: bytes) -> Play:
    """`data` and nothing else."""

    async def play(visit: Visit) -> None:
        await visit.send(data)

    return play


def endless(data: bytes, before: bytes = b"") -> Play:
    """`before` once, then `data` as fast as it is taken."""

    async def play(visit: Visit) -> None:
        await visit.send(before)
        while True:
            await visit.send(data)

    return play


def drip(data: bytes, before: bytes = b"", every_s: float = 0.02) -> Play:
    """`data` again and again, slowly."""

    async def play(visit: Visit) -> None:
        await visit.send(before)
        while True:
            await visit.send(data)
            await asyncio.sleep(every_s)

    return play


async def silent(visit: Visit) -> None:
    await visit.stay()


async def reset(visit: Visit) -> None:
    """The connection is reset, not closed."""
    raw_socket = visit.writer.get_extra_info("socket")
    raw_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    visit.writer.transport.abort()


def by_path(plays: dict[str, Play]) -> Play:
    """Another play for each path."""

    async def play(visit: Visit) -> None:
        await plays[visit.head.split(" ")[1]](visit)

    return play
