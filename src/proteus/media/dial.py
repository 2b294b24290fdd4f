"""Connections for the fetcher: only to checked addresses, and reading no more than was allowed.

A name is resolved once for each connection, and the connection goes to an address of that answer, so that a second
answer of the resolver cannot move it. Every address of the answer must be allowed, not only the one that is dialled.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence

import httpcore

from proteus.errors import FetchFailed
from proteus.limits import FetchLimits
from proteus.media.addresses import may_connect
from proteus.media.target import SEND_BYTES

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
MAX_HEAD_BYTES = 32_768  # status line and headers, and whatever comes before them
MAX_FRAMING_BYTES = 131_072  # sizes of chunks and trailers, beside the body: 16 MiB in chunks of 1 KiB have 112 KiB


class CheckedBackend(httpcore.AsyncNetworkBackend):
    """Resolves names and dials their addresses; the name goes no further than here and into TLS."""

    def __init__(
        self, resolve: Resolve, limits: FetchLimits, dialler: httpcore.AsyncNetworkBackend | None = None
    ) -> None:
        self._resolve, self._limits = resolve, limits
        self._dialler = dialler or httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Raises FetchFailed when an address may not be dialled, TimeoutError, or httpcore.ConnectError."""
        connect_by_s = asyncio.get_running_loop().time() + self._limits.connect_timeout_ms / 1e3
        async with asyncio.timeout_at(connect_by_s):
            addresses = await self._resolve(host, port)
            if not addresses:
                raise FetchFailed("the URL's host is not known", fix=SEND_BYTES)
            if not all(may_connect(address, self._limits.private_networks) for address in addresses):
                raise FetchFailed(
                    "the URL's host has an address that is not public", limit="[fetch] private_networks", fix=SEND_BYTES
                )
            return CountedStream(await self._dial(addresses, port), connect_by_s)

    async def _dial(self, addresses: Sequence[str], port: int) -> httpcore.AsyncNetworkStream:
        """To the first address that answers."""
        failed = httpcore.ConnectError()
        for address in addresses:
            try:
                return await self._dialler.connect_tcp(address, port)
            except httpcore.ConnectError as error:
                failed = error
        raise failed


class CountedStream(httpcore.AsyncNetworkStream):
    """Reads the head of a response, and more only when `allow_body` says how much."""

    def __init__(self, stream: httpcore.AsyncNetworkStream, connect_by_s: float) -> None:
        self._stream, self._connect_by_s = stream, connect_by_s
        self._left_bytes = MAX_HEAD_BYTES

    def allow_body(self, max_bytes: int) -> None:
        """Let a body of `max_bytes` be read, with its framing."""
        self._left_bytes = max_bytes + MAX_FRAMING_BYTES

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Raises FetchFailed once everything allowed has been read."""
        if self._left_bytes <= 0:
            raise FetchFailed(
                "the picture's host sends too much beside the picture",
                limit=f"{MAX_HEAD_BYTES:,} bytes of headers, {MAX_FRAMING_BYTES:,} of chunk sizes",
                fix=SEND_BYTES,
            )
        data = await self._stream.read(min(max_bytes, self._left_bytes), timeout)
        self._left_bytes -= len(data)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        """Within what is left of the time to connect; raises TimeoutError or httpcore.ConnectError."""
        try:
            async with asyncio.timeout_at(self._connect_by_s):
                secure = await self._stream.start_tls(ssl_context, server_hostname)
        except BaseException:
            await self.aclose()  # httpcore leaves it open when it is cancelled here
            raise
        return CountedStream(secure, self._connect_by_s)

    def get_extra_info(self, info: str) -> object:
        return self._stream.get_extra_info(info)


async def resolve_by_system(host: str, port: int) -> Sequence[str]:
    """Every IPv4 and IPv6 address that the system's resolver gives, none when it knows none."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return ()
    return tuple(str(address[0]) for *_, address in found)
