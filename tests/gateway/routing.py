"""Peers that answer as a test wants, orders for them, and a router in front of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

from proteus.client.draw_request import build_draw
from proteus.client.request import build_request
from proteus.cost.vector import ResourceVector
from proteus.gateway.order import Order, Tenant, Visit
from proteus.gateway.routing.router import Router
from tests.client.peer import Peer, event
from tests.gateway.running import in_front_of

Script = Callable[..., Iterator[Any]]
TENANT = Tenant(name="acme", cache_scope="acme's")
QUICK = {"health_interval_ms": 20, "health_timeout_ms": 1_000, "suspect_ms": 200}
TEXT = ResourceVector(requests=1, text_tokens=20, output_tokens=16)
HUGE_PICTURE = ResourceVector(requests=1, items=1, media_bytes=2**23, decoded_pixels=50_000_000, visual_tokens=576)


class ScriptedPeer(Peer):
    """Answers requests by `script`, where there is one; stops are answered as ever, and kept."""

    script: Script | None = None

    def stops(self) -> list[dict[str, Any]]:
        return [document["stop"] for document in self.documents if "stop" in document]

    def asked(self) -> int:
        return len(self.documents) - len(self.stops())

    def _script(self, model: str, document: dict[str, Any]) -> Script:
        is_stop = "stop" in document and "messages" not in document
        return self.script if self.script is not None and not is_stop else super()._script(model, document)


@contextmanager
def peers(count: int = 1) -> Iterator[list[ScriptedPeer]]:
    started = [ScriptedPeer() for _ in range(count)]
    try:
        yield started
    finally:
        for peer in started:
            peer.cancelled.set()
            peer.stop()


def says(text: str) -> Script:
    """An answer that is an error of the server."""
    return lambda *_: iter([service_pb2.ModelStreamInferResponse(error_message=text)])


def breaks(after: int = 0) -> Script:
    """The connection, after so many messages."""

    def script(peer: Peer, document: dict[str, Any], context: grpc.ServicerContext) -> Iterator[Any]:
        for number in range(after):
            yield event("half ", (number,))
        context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")

    return script


def order(text: str = "one two three", **fields: Any) -> Order:
    message = build_request([{"role": "user", "content": text}], (), {"max_tokens": 4})
    return _order(message, "chat", {"pool": "text", **fields})


def drawing(**fields: Any) -> Order:
    return _order(build_draw("a fox", {}), "draw", {"pool": "draw", **fields})


def _order(message: Any, door: Any, fields: dict[str, Any]) -> Order:
    given = {"model": "demo", "tenant": TENANT, "request_id": "7f3c", "latency_class": "text"}
    return Order(message=message, door=door, **{**given, "resources": TEXT, "price": 0.0, **fields})


def visit() -> Visit:
    return Visit(path="/v1/chat/completions", address="127.0.0.1")


@asynccontextmanager
async def routing(*servers: str, pools: dict[str, Any] | None = None, **routing: Any) -> AsyncIterator[Router]:
    """`pools` changes some of those in which all servers are."""
    deployment = in_front_of(*servers, pools=pools or {}, routing={**QUICK, **routing})
    assert deployment.gateway is not None
    router = Router(deployment, deployment.gateway)
    await router.start()
    try:
        yield router
    finally:
        await router.close()


async def answer(router: Router, asked: Order, on: Visit | None = None) -> list[Any]:
    async with aclosing(router.messages(on or visit(), asked)) as messages:
        return [message async for message in messages]
