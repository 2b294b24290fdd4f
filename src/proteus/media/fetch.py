"""Pictures by URL, when the contract names hosts: URL → Target (checked) → connection (checked) → bytes, bounded.

Every redirect is a new Target and a new connection. Nothing of ours is sent: no cookies, no credentials, no referrer;
no proxy is used. Errors never carry the remote's words.
"""

from __future__ import annotations

import asyncio
import ssl

import httpcore

from proteus.errors import FetchFailed, MediaTooLarge, QueueFull
from proteus.limits import FetchLimits
from proteus.media.dial import CheckedBackend, CountedStream, Resolve, resolve_by_system
from proteus.media.target import SEND_BYTES, Target, check_url, redirected

REDIRECTS = (301, 302, 303, 307, 308)
HEADERS = [
    (b"Accept", b"image/*"),
    (b"Accept-Encoding", b"identity"),
    (b"User-Agent", b"proteus"),
    (b"Connection", b"close"),
]


class Fetcher:
    """For one event loop. `resolve` gives the addresses of a host as text; `tls` is the system's trust unless given."""

    def __init__(
        self,
        limits: FetchLimits,
        max_bytes: int,
        *,
        resolve: Resolve = resolve_by_system,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._limits, self._max_bytes, self._resolve = limits, max_bytes, resolve
        self._tls = tls or (ssl.create_default_context() if limits.enabled else None)
        self._free = asyncio.Semaphore(limits.max_at_once)

    async def fetch(self, url: str) -> bytes:
        """The body behind `url`; raises FetchFailed, MediaTooLarge or QueueFull with texts of our own."""
        if not self._limits.enabled:
            raise FetchFailed("pictures by URL are off", limit="[fetch] hosts = []", fix=SEND_BYTES)
        target = check_url(url, self._limits)
        total_ms = self._limits.total_timeout_ms
        begun = False
        try:
            async with asyncio.timeout(total_ms / 1e3), self._free:
                begun = True
                return await self._follow(target)
        except TimeoutError as error:
            if not begun:  # the others' hosts are slow, this one may be quick
                number = self._limits.max_at_once
                raise QueueFull(
                    f"{number:,} pictures are being fetched", limit=f"[fetch] max_at_once = {number:,}"
                ) from error
            raise FetchFailed(
                "the picture did not come in time", limit=f"[fetch] total_timeout_ms = {total_ms:,}", fix=SEND_BYTES
            ) from error

    async def _follow(self, target: Target) -> bytes:
        for _ in range(self._limits.max_redirects + 1):
            answer = await self._get(target)
            if isinstance(answer, bytes):
                return answer
            target = answer
        raise FetchFailed(
            "the URL leads on and on", limit=f"[fetch] max_redirects = {self._limits.max_redirects}", fix=SEND_BYTES
        )

    async def _get(self, target: Target) -> bytes | Target:
        """The body, or where the host sends us on to."""
        backend = CheckedBackend(self._resolve, self._limits)
        url = httpcore.URL(scheme=target.scheme, host=target.host, port=target.port, target=target.path)
        try:
            async with (
                httpcore.AsyncConnectionPool(ssl_context=self._tls, network_backend=backend) as pool,
                pool.stream("GET", url, headers=HEADERS) as response,
            ):
                return await self._read(response, target)
        except TimeoutError as error:
            raise FetchFailed(
                "the picture's host is too slow",
                limit=f"[fetch] connect_timeout_ms = {self._limits.connect_timeout_ms:,}",
                fix=SEND_BYTES,
            ) from error
        except (httpcore.NetworkError, httpcore.ProtocolError, OSError) as error:
            raise FetchFailed("the picture's host could not be talked to", fix=SEND_BYTES) from error

    async def _read(self, response: httpcore.Response, target: Target) -> bytes | Target:
        if response.status in REDIRECTS:
            places = _values(response, b"location")
            if len(places) != 1:
                raise FetchFailed(f"the picture's host answered {response.status} and no one place", fix=SEND_BYTES)
            return redirected(target, places[0].decode("latin-1"), self._limits)
        if response.status != 200:
            raise FetchFailed(f"the picture's host answered {response.status}", limit="200", fix=SEND_BYTES)
        if any(value.lower() != b"identity" for value in _values(response, b"content-encoding")):
            raise FetchFailed("the picture's host sent it packed", limit="no Content-Encoding", fix=SEND_BYTES)
        return await self._body(response)

    async def _body(self, response: httpcore.Response) -> bytes:
        stream: CountedStream = response.extensions["network_stream"]
        stream.allow_body(self._max_bytes)
        announced = [int(value) for value in _values(response, b"content-length")]  # h11 has checked that it is one
        if max(announced, default=0) > self._max_bytes:
            raise self._too_large()
        body = bytearray()
        async for chunk in response.aiter_stream():
            body += chunk
            if len(body) > self._max_bytes:
                raise self._too_large()
            await asyncio.sleep(0)  # a thousand tiny chunks may come at once: others have their turn, and so has time
        return bytes(body)

    def _too_large(self) -> MediaTooLarge:
        return MediaTooLarge(
            "the picture behind the URL is too large",
            limit=f"[image] max_bytes = {self._max_bytes:,}",
            fix="send a smaller or more compressed picture",
        )


def _values(response: httpcore.Response, name: bytes) -> list[bytes]:
    return [value.strip() for key, value in response.headers if key.lower() == name]
