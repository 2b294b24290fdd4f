"""POST /v1/chat/completions: a document in OpenAI's words to an order, a server's events to chunks or a completion."""

from __future__ import annotations

import json
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from proteus.client.request import build_request
from proteus.client.response import AnswerBuilder
from proteus.door.prepare import Prepared
from proteus.door.request import ChatRequest
from proteus.gateway.order import Order, Visit
from proteus.gateway.presence import Out

if TYPE_CHECKING:
    from proteus.gateway.gateway import Gateway


async def answer(gateway: Gateway, visit: Visit, body: bytes, out: Out) -> None:
    """Raises ProteusError or ClientError."""
    asked = json.loads(body)
    model, stream = asked.pop("model"), asked.pop("stream", False)
    with visit.watch.stage("plan"):
        request = ChatRequest.parse(json.dumps(asked).encode(), gateway.reader.limits.text)
        with gateway.seats.take(len(body)) as seat:
            prepared = await gateway.reader.plan(request, seat, None)
    order = _order(visit, model, prepared)
    builder, created = AnswerBuilder(), int(time.time())
    async with aclosing(gateway.passage.messages(visit, order)) as messages:
        async for message in messages:
            piece = builder.add(message)
            if stream and piece is not None:
                choice = {"index": piece.index, "delta": {"content": piece.text}, "finish_reason": None}
                await out.event(_head(visit, model, created, "chat.completion.chunk") | {"choices": [choice]})
    visit.report = builder.report()
    if stream:
        await out.done()
        return
    choices = [
        {
            "index": index,
            "message": {"role": "assistant", "content": choice.text},
            "finish_reason": choice.finish_reason,
        }
        for index, choice in enumerate(builder.answer().choices)
    ]
    await out.json(
        _head(visit, model, created, "chat.completion") | {"choices": choices, "usage": visit.report["usage"]}
    )


def _head(visit: Visit, model: str, created: int, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{visit.request_id}", "object": kind, "created": created, "model": model}


def _order(visit: Visit, model: str, prepared: Prepared) -> Order:
    assert visit.tenant is not None  # noqa: S101
    tenant = visit.tenant
    document = prepared.request.model_dump(exclude_unset=True, exclude={"messages"})
    messages = [
        {
            "role": message.role,
            "content": [
                {"type": "text", "text": part.text} if part.type == "text" else {"type": "image"}
                for part in message.parts()
            ],
        }
        for message in prepared.request.messages
    ]
    options = document | {"request_id": visit.request_id, "tenant": tenant.name, "cache_scope": tenant.cache_scope}
    message = build_request(messages, [picture.data for picture in prepared.pictures], options)  # type: ignore[arg-type]
    return Order(
        message=message,
        door="chat",
        model=model,
        pool="picture" if prepared.pictures else "text",
        tenant=tenant,
        request_id=visit.request_id,
        latency_class=prepared.latency_class,
        resources=prepared.resources,
        price=0.0,
        deadline_s=prepared.deadline_s,
    )
