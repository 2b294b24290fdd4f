"""The operations port, for those who run the gateway: its metrics, and its health in full. Never published."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from starlette.types import Receive, Scope, Send

from proteus import __version__
from proteus.gateway.errors import MethodNotAllowed, NotFound, error_body
from proteus.gateway.http.presence import as_json
from proteus.gateway.metrics import CONTENT_TYPE

if TYPE_CHECKING:
    from proteus.gateway.gateway import Gateway

MAX_CONNECTIONS = 64
PATHS = "/metrics, /health"
READING = ("GET", "HEAD")
JSON = b"application/json"


class Operations:
    """An ASGI application."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status, kind, body = self._reply(scope["method"], scope["path"])
        headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    def _reply(self, method: str, path: str) -> tuple[int, bytes, bytes]:
        if method not in READING:
            return 405, JSON, error_body(MethodNotAllowed("this is only read", fix="GET it"))
        if path == "/metrics":
            return 200, CONTENT_TYPE, self._gateway.metrics.text()
        if path == "/health":
            document = condition(self._gateway)
            return 200 if document["ready"] else 503, JSON, as_json(document)
        return 404, JSON, error_body(NotFound("there is no such path", limit=PATHS, fix="ask for one of them"))


def condition(gateway: Gateway) -> dict[str, Any]:
    """For a person, or a program that watches."""
    why = gateway.why_not_ready()
    return {
        "ready": why is None,
        "why": why,
        "version": __version__,
        "deployment": gateway.deployment.name,
        "draining": gateway.visits.draining,
        "pools": {
            pool: {"ready": gateway.router.ready(pool), "waiting": waiting}
            for pool, waiting in gateway.shares.figures().items()
        },
        "servers": [asdict(one) for one in gateway.router.figures()],
        "open_requests": gateway.visits.open,
        "connections": gateway.connections.open,
    }
