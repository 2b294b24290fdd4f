"""Requests that no endpoint answers: unknown paths and methods, in the form of every other refusal; and health."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from proteus.door.document import shorten
from proteus.errors import InternalError, InvalidRequest, ProteusError
from proteus.gateway.errors import MethodNotAllowed, NotFound, http_error
from proteus.gateway.http.presence import as_json

if TYPE_CHECKING:
    from proteus.gateway.gateway import Gateway

log = logging.getLogger(__name__)


async def refused(request: Request, error: Exception) -> Response:
    """What the framework refuses by itself."""
    if not isinstance(error, HTTPException):
        log.error("%s failed", shorten(request.url.path), exc_info=error)
        return _answer(InternalError())
    return _answer(_told(request, error), dict(error.headers or {}))


HANDLERS: dict[Any, Any] = {HTTPException: refused, Exception: refused}


def health(gateway: Gateway, *, live: bool) -> Response:
    """Whether there is a process, or one that takes requests: nothing more, this is told to everybody."""
    if live:
        return Response(as_json({"live": True}), media_type="application/json")
    ready = gateway.why_not_ready() is None
    return Response(as_json({"ready": ready}), status_code=200 if ready else 503, media_type="application/json")


def _told(request: Request, error: HTTPException) -> ProteusError:
    path = shorten(request.url.path)
    if error.status_code == NotFound.http_status:
        return NotFound(f"there is no {path}", fix="GET /openapi.json lists the paths")
    if error.status_code == MethodNotAllowed.http_status:
        allowed = (error.headers or {}).get("Allow", "another method")
        return MethodNotAllowed(f"{path} cannot be asked so", limit=allowed, fix="use that method")
    return InvalidRequest("the request cannot be read", fix="see GET /openapi.json")


def _answer(error: ProteusError, headers: dict[str, str] | None = None) -> Response:
    status, document, _ = http_error(error)
    return Response(as_json(document), status_code=status, headers=headers, media_type="application/json")
