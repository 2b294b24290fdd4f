"""POST /v1/images/generations: a document in OpenAI's words to an order, pictures to a stream or to one answer."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from proteus.client.draw_response import DrawingBuilder
from proteus.client.drawing import Drawn, Encoded, Preview
from proteus.errors import InvalidRequest, Unavailable
from proteus.gateway.account import account
from proteus.gateway.artist import Artist, Sketch
from proteus.gateway.body import load_json
from proteus.gateway.chat import user_hash
from proteus.gateway.images_answer import COMPLETED, PARTIAL, bill, completed, partial_image, whole
from proteus.gateway.images_request import ImagesRequest
from proteus.gateway.in_base64 import written
from proteus.gateway.order import Order, Visit
from proteus.gateway.presence import Out

if TYPE_CHECKING:
    from proteus.gateway.gateway import Gateway


async def answer(gateway: Gateway, visit: Visit, body: bytes, out: Out) -> None:
    """Raises ProteusError or ClientError."""
    with visit.watch.stage("plan"):
        asked = ImagesRequest.parse(await load_json(body, gateway.settings.http))
        artist = gateway.models.artist(asked.model, visit.whose)
        _check_size(body, artist)
        sketch = artist.plan(visit, asked.drawing(artist))
        order = replace(sketch.order(visit), whole=not asked.stream)
    visit.user_hash = user_hash(visit, asked.user)
    drawing = _Drawing(visit, sketch, order, asked, out)
    async with aclosing(gateway.passage.messages(visit, order)) as messages:
        async for message in messages:
            if (item := drawing.builder.add(message)) is not None and asked.stream:
                await drawing.send(item)
    await drawing.end()


class _Drawing:
    """One request's pictures on their way."""

    def __init__(self, visit: Visit, sketch: Sketch, order: Order, asked: ImagesRequest, out: Out) -> None:
        self.builder = DrawingBuilder()
        self._visit, self._sketch, self._order, self._asked, self._out = visit, sketch, order, asked, out
        self._plan, self._created = sketch.plan, int(time.time())
        self._partials: Counter[int] = Counter()  # sent, by the picture's index
        self._left = len(sketch.plan.pictures)
        self._last: Drawn | None = None  # of the pictures; told with the account, which comes after it

    async def send(self, item: Encoded) -> None:
        """An event of the stream."""
        if isinstance(item, Preview):
            number = self._partials[item.index]
            if number < self._asked.partial_images:
                self._partials[item.index] += 1
                made = partial(partial_image, item, number, self._plan, self._created)
                await self._out.event_of(await written(len(item.data), made), name=PARTIAL)
        elif isinstance(item, Drawn):
            self._left -= 1
            if self._left:
                await self._complete(item, {})
            else:
                self._last = item

    async def end(self) -> None:
        """The rest of the stream, or the whole answer. Raises ServerError or Unavailable where pictures are missing."""
        report = self.builder.report()
        pictures = self.builder.drawing().pictures
        self._visit.report = report
        price = self._sketch.price_of(report)
        self._visit.price = float(price.amount)
        if len(pictures) < len(self._plan.pictures):
            raise Unavailable("the server ended the drawing before it was complete", fix="ask again")
        more = {"proteus": account(self._visit, self._order, report, price, **bill(report))}
        if self._asked.stream:
            if self._last is not None:
                await self._complete(self._last, more)
            await self._out.end()
            return
        num_bytes = sum(len(picture.data) for picture in pictures)
        await self._out.whole(await written(num_bytes, partial(whole, pictures, self._plan, self._created, more)))

    async def _complete(self, picture: Drawn, more: Mapping[str, Any]) -> None:
        made = partial(completed, picture, self._plan, self._created, more)
        await self._out.event_of(await written(len(picture.data), made), name=COMPLETED)


def _check_size(body: bytes, artist: Artist) -> None:
    max_bytes = artist.limits.max_request_bytes
    if len(body) > max_bytes:
        raise InvalidRequest(
            f"the request document has {len(body):,} bytes",
            limit=f"[draw] max_request_bytes = {max_bytes:,}",
            fix="send a shorter prompt",
        )
