"""POST /v1/chat/completions: a document in OpenAI's words to an order, a server's events to chunks or a completion."""

from __future__ import annotations

import hashlib
from asyncio import to_thread
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

from proteus.client.response import AnswerBuilder
from proteus.client.results import Piece
from proteus.door.request import ChatRequest
from proteus.gateway.http.body import LARGE_BYTES, load_json
from proteus.gateway.http.presence import Out
from proteus.gateway.openai.account import account
from proteus.gateway.openai.chat_answer import ChatAnswer, check_complete
from proteus.gateway.openai.chat_request import model_of, read_chat
from proteus.gateway.order import Order, Visit
from proteus.gateway.planning.reader import Reading

if TYPE_CHECKING:
    from proteus.gateway.gateway import Gateway

INLINE_LOGPROBS = 32  # tokens, each with 20 others beside it: 2 ms


async def answer(gateway: Gateway, visit: Visit, body: bytes, out: Out) -> None:
    """Raises ProteusError or ClientError."""
    with visit.watch.stage("plan"):
        document = await load_json(body, gateway.settings.http)
        reader = gateway.models.reader(model_of(document), visit.whose)
        wish = read_chat(document, reader.limits.text)
        visit.user_hash = user_hash(visit, wish.user)
        reading = await reader.plan(visit, wish.request, visit.own_seat)
    reading = await _checked(gateway, visit, reading)
    with visit.watch.stage("plan"):
        # The pictures are copied into the message: megabytes are, while others go on.
        order = reading.order(visit) if len(body) <= LARGE_BYTES else await to_thread(reading.order, visit)
    if not wish.stream:
        order = replace(order, whole=True)
    told = ChatAnswer(wish, visit.request_id, order.model, revision=reading.revision)
    builder, held = AnswerBuilder(), gateway.moderation.held(visit)
    async with aclosing(gateway.passage.messages(visit, order)) as messages:
        async for message in messages:
            piece = builder.add(message)
            if wish.stream and piece is not None:
                await _send(out, told, [piece] if held is None else await held.add(piece))
    report, answered = builder.report(), builder.answer()
    visit.reported(report)
    check_complete(answered)
    if held is not None and wish.stream:
        await _send(out, told, await held.end())
    elif held is not None:
        await gateway.moderation.after_text(visit, *(choice.text for choice in answered.choices))
    bill = _bill(visit, reading, order, report)
    if not wish.stream:
        num_tokens = sum(len(choice.logprobs) for choice in answered.choices)
        write = partial(told.completion, answered, bill)
        await out.whole(write() if num_tokens <= INLINE_LOGPROBS else await to_thread(write))
        return
    await out.events(told.last_chunks(answered, bill), last=True)


async def _checked(gateway: Gateway, visit: Visit, reading: Reading) -> Reading:
    """The question, planned again where a picture of it was blurred. Raises ContentRefused, or as a plan does."""
    if not gateway.moderation.is_before:
        return reading
    prepared = reading.prepared
    blurred = await gateway.moderation.before(visit, list(texts_of(prepared.request)), prepared.pictures)
    if not blurred:
        return reading
    with visit.watch.stage("plan"):
        return await gateway.models.again(reading, blurred, visit.own_seat)


async def _send(out: Out, told: ChatAnswer, pieces: Sequence[Piece]) -> None:
    await out.events(chunk for piece in pieces for chunk in told.chunks(piece))


def texts_of(request: ChatRequest) -> Iterator[str]:
    """Every text of the conversation, as the model reads it: parts that follow each other are one."""
    for message in request.messages:
        for kind, parts in groupby(message.parts(), lambda part: part.type):
            if kind == "text":
                yield "".join(part.text for part in parts if part.type == "text")


def _bill(visit: Visit, reading: Reading, order: Order, report: Mapping[str, Any]) -> dict[str, Any]:
    price = reading.price_of(report)
    visit.price = float(price.amount)
    auto = {} if reading.auto is None else {"auto": asdict(reading.auto)}
    return account(visit, order, report, price, **auto)


def user_hash(visit: Visit, user: str | None) -> str:
    """What the metering log knows of a tenant's user: the same for the same one, of another tenant another."""
    return "" if user is None else hashlib.sha256(f"{visit.whose.name}\0{user}".encode()).hexdigest()
