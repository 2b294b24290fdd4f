"""The body of a request, bounded while it is read: bytes, and the time between and for all of its pieces."""

from __future__ import annotations

import asyncio

from starlette.types import Receive, Scope

from proteus.gateway.errors import BodyTooLarge, UnsupportedMediaType, UploadTooSlow
from proteus.limits_gateway import GatewayHttp


async def read_body(scope: Scope, receive: Receive, limits: GatewayHttp) -> bytes:
    """Empty for a method without one. Raises BodyTooLarge, UnsupportedMediaType or UploadTooSlow."""
    if scope["method"] in ("GET", "HEAD"):
        return b""
    headers = dict(scope["headers"])
    if headers.get(b"content-type", b"").split(b";")[0].strip().lower() != b"application/json":
        raise UnsupportedMediaType("the body is no JSON", limit="application/json", fix="send it as application/json")
    pieces, size = [], 0
    try:
        async with asyncio.timeout(limits.body_timeout_ms / 1e3):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise asyncio.CancelledError
                piece = message.get("body", b"")
                size += len(piece)
                if size > limits.max_body_bytes:
                    raise BodyTooLarge(
                        "the body is too large",
                        limit=f"[gateway.http] max_body_bytes = {limits.max_body_bytes:,}",
                        fix="send fewer or smaller pictures",
                    )
                pieces.append(piece)
                if not message.get("more_body", False):
                    return b"".join(pieces)
    except TimeoutError as error:
        raise UploadTooSlow(
            "the body did not come in time",
            limit=f"[gateway.http] body_timeout_ms = {limits.body_timeout_ms:,}",
            fix="send less, or over a faster line",
        ) from error
