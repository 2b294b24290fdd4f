"""An ASGI response that does its work while it watches the client: whoever leaves ends the work.

One place for the bounded body, errors in OpenAI's form, streams of server-sent events and the last line of the log.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from proteus.client.errors import ClientError
from proteus.errors import ProteusError
from proteus.gateway.body import read_body
from proteus.gateway.errors import http_error
from proteus.gateway.order import CLIENT_GONE, Visit

if TYPE_CHECKING:
    from proteus.gateway.gateway import Gateway

Headers = list[tuple[bytes, bytes]]
log = logging.getLogger(__name__)


def as_json(document: Any) -> bytes:
    """As all of the gateway's answers are written."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


class ClientGone(Exception):
    """Nobody is there to be answered."""


class Out:
    """What a request is answered with: one JSON document, or events and then `done`."""

    def __init__(self, send: Send, request_id: str, *, send_timeout_s: float) -> None:
        self._send, self._timeout_s = send, send_timeout_s
        self._headers: Headers = [(b"x-request-id", request_id.encode())]
        self.status = 0  # as it was sent; 0: nothing was
        self._ended = False

    async def json(self, document: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        await self.whole(as_json(document), status=status, headers=headers)

    async def whole(self, body: bytes, *, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """A JSON document that is bytes already."""
        more = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        await self._start(
            status, [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *more]
        )
        await self._write(body, more=False)

    async def event(self, document: Any, *, name: str | None = None) -> None:
        """One server-sent event; the first one opens the stream."""
        await self.event_of(as_json(document), name=name)

    async def event_of(self, body: bytes, *, name: str | None = None) -> None:
        """An event whose JSON document is bytes already."""
        if not self.status:
            await self.begin_events()
        head = f"event: {name}\n".encode() if name else b""
        await self._write(b"".join((head, b"data: ", body, b"\n\n")), more=True)

    async def begin_events(self) -> None:
        await self._start(
            200, [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
        )

    async def done(self) -> None:
        """Ends a stream as OpenAI's chat does."""
        await self._write(b"data: [DONE]\n\n", more=False)

    async def end(self) -> None:
        """Ends a stream without a word, as that of pictures does."""
        await self._write(b"", more=False)

    async def error(self, error: Exception) -> int:
        """The status that it stands for; in a stream that has begun it is its last event."""
        status, document, retry_after_s = http_error(error)
        if self._ended:
            return status
        if self.status:
            await self.event(document)
            await self._write(b"", more=False)
        else:
            retry = {} if retry_after_s is None else {"retry-after": str(math.ceil(retry_after_s))}
            await self.json(document, status=status, headers=retry)
        return status

    async def _start(self, status: int, headers: Headers) -> None:
        self.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": headers + self._headers})

    async def _write(self, body: bytes, *, more: bool) -> None:
        self._ended = not more
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._send({"type": "http.response.body", "body": body, "more_body": more})
        except TimeoutError as error:
            raise ClientGone from error


Endpoint = Callable[["Gateway", Visit, bytes, Out], Awaitable[None]]


class Answering(Response):
    """Answers one request by `endpoint`, which is cancelled when its client leaves."""

    def __init__(self, gateway: Gateway, endpoint: Endpoint) -> None:
        super().__init__()
        self._gateway, self._endpoint = gateway, endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gateway = self._gateway
        visit = Visit(path=scope["path"], address=(scope.get("client") or ("",))[0])
        out = Out(send, visit.request_id, send_timeout_s=gateway.settings.http.send_timeout_ms / 1e3)
        try:
            await self._answer(scope, receive, visit, out)
            visit.status = out.status
        except (ClientGone, asyncio.CancelledError):
            visit.outcome = CLIENT_GONE
        except (ProteusError, ClientError) as error:
            await self._refuse(error, visit, out)
        except Exception as error:
            log.exception("request %s failed", visit.request_id)
            await self._refuse(error, visit, out)
        finally:
            gateway.ended(visit)

    async def _answer(self, scope: Scope, receive: Receive, visit: Visit, out: Out) -> None:
        headers = dict(scope["headers"])
        visit.tenant = self._gateway.tenants.of(headers.get(b"authorization", b""), visit.address)
        with visit.watch.stage("receive"):
            body = await read_body(scope, receive, self._gateway.settings.http)
        work = asyncio.ensure_future(self._endpoint(self._gateway, visit, body, out))
        gone = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise ClientGone
            await work
        finally:
            for task in (work, gone):
                task.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await task

    async def _refuse(self, error: Exception, visit: Visit, out: Out) -> None:
        visit.outcome = http_error(error)[1]["error"]["code"]
        with suppress(ClientGone):
            visit.status = await out.error(error)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
