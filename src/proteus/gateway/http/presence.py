"""An ASGI response that does its work while it watches the client: whoever leaves ends the work.

One place for the bounded body, errors in OpenAI's form, streams of server-sent events and the last line of the log.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from proteus.client.errors import ClientError
from proteus.door.seats import Seat
from proteus.errors import InternalError, ProteusError
from proteus.gateway.errors import Draining, ExpiredKey, InvalidKey, http_error
from proteus.gateway.http.body import ClientGone, read_body
from proteus.gateway.order import CLIENT_GONE, Tenant, Visit
from proteus.gateway.visits import draining

if TYPE_CHECKING:
    from proteus.gateway.gateway import Gateway

Headers = list[tuple[bytes, bytes]]
TRACEPARENT = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
DONE = b"data: [DONE]\n\n"
ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
log = logging.getLogger(__name__)


def as_json(document: Any) -> bytes:
    """As all of the gateway's answers are written."""
    return ENCODER.encode(document).encode()


class Out:
    """What a request is answered with: one JSON document, or events and an end."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._headers: Headers = [(b"x-request-id", request_id.encode())]
        self.status = 0  # as it was sent; 0: nothing was
        self.ended = False

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

    async def events(self, bodies: Iterable[bytes], *, last: bool = False) -> None:
        """Several in one piece, or none, each JSON already; with the last a stream ends as OpenAI's chat does."""
        body = b"".join(b"data: %b\n\n" % one for one in bodies)
        if not body and not last:
            return
        if not self.status:
            await self.begin_events()
        await self._write(body + DONE if last else body, more=not last)

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

    async def end(self) -> None:
        """Ends a stream without a word, as that of pictures does."""
        await self._write(b"", more=False)

    async def error(self, error: Exception) -> int:
        """The status that it stands for; in a stream that has begun it is its last event."""
        status, document, retry_after_s = http_error(error)
        if self.ended:
            return status
        if self.status:
            await self.event(document)
            await self._write(b"", more=False)
        else:
            headers = {} if retry_after_s is None else {"retry-after": str(math.ceil(retry_after_s))}
            if isinstance(error, InvalidKey):
                headers["www-authenticate"] = "Bearer"
            if isinstance(error, Draining):  # the next request goes to who still takes some
                headers["connection"] = "close"
            await self.json(document, status=status, headers=headers)
        return status

    async def _start(self, status: int, headers: Headers) -> None:
        self.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": headers + self._headers})

    async def _write(self, body: bytes, *, more: bool) -> None:
        self.ended = not more
        await self._send({"type": "http.response.body", "body": body, "more_body": more})


Endpoint = Callable[["Gateway", Visit, bytes, Out], Awaitable[None]]


class Answering(Response):
    """Answers one request by `endpoint`, which is cancelled when its client leaves."""

    def __init__(self, gateway: Gateway, endpoint: Endpoint) -> None:
        super().__init__()
        self._gateway, self._endpoint = gateway, endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gateway = self._gateway
        visit = Visit(path=scope["path"], address=gateway.proxies.client_of(scope))
        out = Out(send, visit.request_id)
        try:
            with gateway.visits.one():
                visit.tenant = self._whose(scope, visit)
                with gateway.seats.take(0, visit.tenant) as visit.seat:
                    await self._answer(scope, receive, visit, visit.seat, out)
            visit.status = out.status
        except ClientGone as gone:
            visit.outcome = CLIENT_GONE
            if not isinstance(gone.__cause__, ProteusError | ClientError | None):
                log.error("request %s failed when its client left", visit.request_id, exc_info=gone.__cause__)
        except asyncio.CancelledError:  # of the gateway's end, not the client's
            visit.outcome = Draining.code
            if not gateway.visits.draining:
                raise
            await self._refuse(draining(), visit, out)
        except (ProteusError, ClientError) as error:
            await self._refuse(error, visit, out)
        except Exception as error:
            log.exception("request %s failed", visit.request_id)
            await self._refuse(error, visit, out)
        finally:
            gateway.ended(visit)

    async def _answer(self, scope: Scope, receive: Receive, visit: Visit, seat: Seat, out: Out) -> None:
        with visit.watch.stage("receive"), self._gateway.visits.reading():
            body = await read_body(scope, receive, self._gateway.settings.http, seat)
        work = asyncio.ensure_future(self._endpoint(self._gateway, visit, body, out))
        gone = asyncio.ensure_future(_gone(receive))
        try:
            with self._gateway.visits.working(work):
                await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
                if out.ended:  # which is told as the client's leaving, too
                    await _done(work)
            left = not work.done()
        finally:
            work.cancel()
            gone.cancel()
            await _done(work, gone)
        if left:
            raise ClientGone from None if work.cancelled() else work.exception()
        if work.cancelled():
            raise draining() if self._gateway.visits.draining else InternalError
        work.result()

    def _whose(self, scope: Scope, visit: Visit) -> Tenant:
        headers = dict(scope["headers"])
        authorization = headers.get(b"authorization", b"")
        visit.traceparent = _traceparent(headers.get(b"traceparent", b""))
        self._gateway.guessing.check(visit.address)
        try:
            return self._gateway.tenants.of(authorization)
        except InvalidKey as error:
            if authorization and not isinstance(error, ExpiredKey):
                self._gateway.guessing.failed(visit.address)
            raise

    async def _refuse(self, error: Exception, visit: Visit, out: Out) -> None:
        visit.outcome = http_error(error)[1]["error"]["code"]
        visit.status = await out.error(error)


def _traceparent(header: bytes) -> str:
    """As W3C writes it; anything else is none."""
    return header.decode() if TRACEPARENT.fullmatch(header) else ""


async def _done(*works: asyncio.Future[Any]) -> None:
    """Waits for those that still run: for one that has ended, too, `asyncio.wait` takes a turn of the loop."""
    if running := [work for work in works if not work.done()]:
        await asyncio.wait(running)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
