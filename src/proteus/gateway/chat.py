"""POST /v1/chat/completions: a document in OpenAI's words to an order, a server's events to chunks or a completion."""

from __future__ import annotations

import json
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from proteus.client.response import AnswerBuilder
from proteus.gateway.order import Visit
from proteus.gateway.presence import Out

if TYPE_CHECKING:
    from proteus.gateway.gateway import Gateway


async def answer(gateway: Gateway, visit: Visit, body: bytes, out: Out) -> None:
    """Raises ProteusError or ClientError."""
    asked = json.loads(body)
    model, stream = asked.pop("model"), asked.pop("stream", False)
    with visit.watch.stage("plan"):
        reader = gateway.models.reader(model, visit.whose)
        with gateway.seats.take(len(body)) as seat:
            reading = await reader.plan(visit, reader.parse(json.dumps(asked).encode()), seat)
    order = reading.order(visit)
    builder, created = AnswerBuilder(), int(time.time())
    async with aclosing(gateway.passage.messages(visit, order)) as messages:
        async for message in messages:
            piece = builder.add(message)
            if stream and piece is not None:
                choice = {"index": piece.index, "delta": {"content": piece.text}, "finish_reason": None}
                await out.event(_head(visit, model, created, "chat.completion.chunk") | {"choices": [choice]})
    visit.report = builder.report()
    visit.price = float(reading.price_of(visit.report).amount)
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
