"""What browsers are told and asked: headers on every answer, by which name we were reached, and from which page."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from proteus.door.document import shorten
from proteus.gateway.errors import NotAllowed
from proteus.gateway.http.presence import Out

SECURITY_HEADERS: Mapping[bytes, bytes] = MappingProxyType(
    {
        b"content-security-policy": b"default-src 'none'; frame-ancestors 'none'",
        b"x-content-type-options": b"nosniff",
        b"x-frame-options": b"DENY",
        b"referrer-policy": b"no-referrer",
        b"cross-origin-resource-policy": b"same-origin",
        b"cache-control": b"no-store",
    }
)
READING = ("GET", "HEAD")
PROBED = ("/health/live", "/health/ready")  # by address, from within a cluster; they tell nothing


class Browser:
    """Around an ASGI application. `hosts` are names in the Host header, `*` is any."""

    def __init__(self, app: ASGIApp, hosts: Iterable[str], *, refused: Callable[[str, str], None]) -> None:
        """`refused` is told the path and the code of each refusal."""
        self._app, self._refused = app, refused
        self._hosts = {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def told(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = _with_ours(message.get("headers", ()))
            await send(message)

        refusal = self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, told)
        else:
            self._refused(scope["path"], refusal.code)
            await Out(told, secrets.token_hex(16)).error(refusal)

    def _refusal(self, scope: Scope) -> NotAllowed | None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if scope["path"] not in PROBED and not self._is_ours(host):
            return NotAllowed(
                f'the host "{shorten(host)}" is not served',
                limit="[gateway.http] hosts",
                fix="use a name of them, or add this one",
            )
        if scope["method"] not in READING and not _is_same_origin(headers, host):
            return NotAllowed("a page of another origin may not ask", fix="ask from your own server, with a key")
        return None

    def _is_ours(self, host: str) -> bool:
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        return "*" in self._hosts or name in self._hosts


def _is_same_origin(headers: Mapping[bytes, bytes], host: str) -> bool:
    """Who is no browser sends neither header. The scheme may be another: a proxy may speak TLS for us."""
    if headers.get(b"sec-fetch-site", b"").lower() in (b"cross-site", b"same-site"):
        return False
    origin = headers.get(b"origin")
    return origin is None or origin.decode("latin-1").lower().partition("://")[2] == host


def _with_ours(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    headers = list(headers)
    names = {name for name, _ in headers}
    headers += [pair for pair in SECURITY_HEADERS.items() if pair[0] not in names]
    if b"x-request-id" not in names:
        headers.append((b"x-request-id", secrets.token_hex(16).encode()))
    return headers
