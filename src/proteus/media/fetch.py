"""Pictures by URL, when the contract names hosts: each hop is checked, each address is checked and then dialled itself.

A name is resolved once for each connection, and the connection goes to an address of that answer, so that a second
answer of the resolver cannot move it. Nothing of ours is sent: no cookies, no credentials, no proxy, no referrer.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import urljoin, urlsplit

import httpcore

from proteus.errors import FetchFailed, MediaTooLarge
from proteus.limits import FetchLimits
from proteus.media.addresses import may_connect

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
DEFAULT_PORTS = {"https": 443, "http": 80}
REDIRECTS = (301, 302, 303, 307, 308)
MAX_URL_CHARS = 2048
FORBIDDEN = re.compile(r"[\x00-\x20\x7f\\]|%0[ad0]", re.IGNORECASE)
HEADERS = [(b"Accept", b"image/*"), (b"Accept-Encoding", b"identity"), (b"User-Agent", b"proteus")]
SEND_BYTES = "send the picture's bytes instead"


@dataclass(frozen=True, slots=True)
class Target:
    """A URL that passed the contract."""

    scheme: str
    host: str  # ASCII, lower case, no trailing dot
    port: int
    path: str  # with the query


class Fetcher:
    """For one event loop. `resolve` gives the addresses of a host as text."""

    def __init__(
        self,
        limits: FetchLimits,
        max_bytes: int,
        *,
        resolve: Resolve | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._limits, self._max_bytes = limits, max_bytes
        self._resolve = resolve or resolve_by_system
        self._tls = tls
        self._free = asyncio.Semaphore(limits.max_at_once)

    async def fetch(self, url: str) -> bytes:
        """The body behind `url`; raises FetchFailed or MediaTooLarge with texts of our own."""
        if not self._limits.hosts:
            raise FetchFailed("pictures by URL are off", limit="[fetch] hosts = []", fix=SEND_BYTES)
        total_ms = self._limits.total_timeout_ms
        try:
            async with asyncio.timeout(total_ms / 1e3), self._free:
                return await self._follow(url)
        except TimeoutError as error:
            raise FetchFailed(
                "the picture's host is too slow", limit=f"[fetch] total_timeout_ms = {total_ms:,}", fix=SEND_BYTES
            ) from error

    async def _follow(self, url: str) -> bytes:
        target = check_url(url, self._limits)
        for _ in range(self._limits.max_redirects + 1):
            answer = await self._get(target)
            if isinstance(answer, bytes):
                return answer
            after = check_url(answer, self._limits)
            if target.scheme == "https" and after.scheme != "https":
                raise FetchFailed("the URL leads from https to http", fix=SEND_BYTES)
            target = after
        raise FetchFailed(
            "the URL leads on and on", limit=f"[fetch] max_redirects = {self._limits.max_redirects}", fix=SEND_BYTES
        )

    async def _get(self, target: Target) -> bytes | str:
        """The body, or the URL that the host sends us on to."""
        backend = CheckedBackend(self._resolve, self._limits.private_networks)
        seconds = self._limits.connect_timeout_ms / 1e3
        timeouts = {"connect": seconds, "read": self._limits.total_timeout_ms / 1e3, "write": seconds, "pool": seconds}
        url = httpcore.URL(scheme=target.scheme, host=target.host, port=target.port, target=target.path.encode("ascii"))
        host = target.host if target.port == DEFAULT_PORTS[target.scheme] else f"{target.host}:{target.port}"
        headers = [(b"Host", host.encode("ascii")), *HEADERS]
        try:
            async with (
                httpcore.AsyncConnectionPool(
                    ssl_context=self._tls or ssl.create_default_context(), network_backend=backend, retries=0
                ) as pool,
                pool.stream("GET", url, headers=headers, extensions={"timeout": timeouts}) as response,
            ):
                return await self._read(response, target)
        except (httpcore.TimeoutException, TimeoutError) as error:
            raise FetchFailed(
                "the picture's host is too slow",
                limit=f"[fetch] connect_timeout_ms = {self._limits.connect_timeout_ms:,}",
                fix=SEND_BYTES,
            ) from error
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.UnsupportedProtocol, OSError) as error:
            raise FetchFailed("the picture's host could not be talked to", fix=SEND_BYTES) from error

    async def _read(self, response: httpcore.Response, target: Target) -> bytes | str:
        headers = {name.lower(): value for name, value in response.headers}
        if response.status in REDIRECTS:
            place = headers.get(b"location", b"").decode("latin-1")
            if not place:
                raise FetchFailed(f"the picture's host answered {response.status} and no place to go", fix=SEND_BYTES)
            return urljoin(f"{target.scheme}://{target.host}:{target.port}{target.path}", place)
        if response.status != 200:
            raise FetchFailed(f"the picture's host answered {response.status}", limit="200", fix=SEND_BYTES)
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise FetchFailed("the picture's host sent it packed", limit="no Content-Encoding", fix=SEND_BYTES)
        return await self._bounded(response, headers.get(b"content-length", b""))

    async def _bounded(self, response: httpcore.Response, announced: bytes) -> bytes:
        too_large = MediaTooLarge(
            "the picture behind the URL is too large",
            limit=f"[image] max_bytes = {self._max_bytes:,}",
            fix="send a smaller or more compressed picture",
        )
        if announced.isdigit() and int(announced[:20]) > self._max_bytes:
            raise too_large
        body = bytearray()
        async for chunk in response.aiter_stream():
            body += chunk
            if len(body) > self._max_bytes:
                raise too_large
        return bytes(body)


class CheckedBackend(httpcore.AsyncNetworkBackend):
    """Dials only addresses that may be dialled; the name is resolved here and nowhere else."""

    def __init__(self, resolve: Resolve, private_networks: Sequence[str]) -> None:
        self._resolve, self._private_networks = resolve, private_networks
        self._dialler = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Raises FetchFailed when the host has no address, or one that is not public."""
        async with asyncio.timeout(timeout):
            addresses = await self._resolve(host, port)
        if not addresses:
            raise FetchFailed("the URL's host is not known", fix=SEND_BYTES)
        if not all(may_connect(address, self._private_networks) for address in addresses):
            raise FetchFailed(
                "the URL's host has an address that is not public", limit="[fetch] private_networks", fix=SEND_BYTES
            )
        return await self._dialler.connect_tcp(addresses[0], port, timeout, local_address, socket_options)


def check_url(url: str, limits: FetchLimits) -> Target:
    """The parts of `url`; raises FetchFailed unless scheme, host and port are allowed and nothing odd is in it."""
    if len(url) > MAX_URL_CHARS:
        raise FetchFailed("the URL is too long", limit=f"{MAX_URL_CHARS:,} characters", fix="send a shorter URL")
    if FORBIDDEN.search(url) or not url.isascii():
        raise FetchFailed("the URL holds characters that a URL may not hold", fix="percent-encode it, IDNA for hosts")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise FetchFailed("the URL cannot be read", fix="write it like https://host/path") from error
    if parts.scheme not in limits.schemes:
        raise FetchFailed("the URL's scheme is not allowed", limit=f"[fetch] schemes = {', '.join(limits.schemes)}")
    if "@" in parts.netloc:
        raise FetchFailed("the URL carries a name or password", fix="send a URL without")
    host = (parts.hostname or "").removesuffix(".")
    if not any(_matches(host, pattern) for pattern in limits.hosts):
        raise FetchFailed("the URL's host is not allowed", limit=f"[fetch] hosts = {', '.join(limits.hosts)}")
    port = DEFAULT_PORTS[parts.scheme] if port is None else port
    if port not in limits.ports:
        raise FetchFailed("the URL's port is not allowed", limit=f"[fetch] ports = {', '.join(map(str, limits.ports))}")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(parts.scheme, host, port, path)


async def resolve_by_system(host: str, port: int) -> Sequence[str]:
    """Addresses of the system's resolver, none when it knows none."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return ()
    return tuple(str(address[0]) for *_, address in found)


def _matches(host: str, pattern: str) -> bool:
    """ "*.example.com" is any name below example.com, not example.com itself."""
    return host.endswith(pattern[1:]) if pattern.startswith("*.") else host == pattern
