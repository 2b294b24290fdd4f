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
from proteus.errors import Unavailable
from proteus.gateway.http.body import load_json
from proteus.gateway.http.presence import Out
from proteus.gateway.moderation.moderation import Moderation
from proteus.gateway.openai.account import account
from proteus.gateway.openai.chat import user_hash
from proteus.gateway.openai.images_answer import COMPLETED, PARTIAL, bill, completed, partial_image, whole
from proteus.gateway.openai.images_request import ImagesRequest
from proteus.gateway.openai.in_base64 import written
from proteus.gateway.order import Order, Visit
from proteus.gateway.planning.artist import Sketch

if TYPE_CHECKING:
    from proteus.gateway.gateway import Gateway


async def answer(gateway: Gateway, visit: Visit, body: bytes, out: Out) -> None:
    """Raises ProteusError or ClientError."""
    with visit.watch.stage("plan"):
        asked = ImagesRequest.parse(await load_json(body, gateway.settings.http))
        artist = gateway.models.artist(asked.model, visit.whose)
        visit.user_hash = user_hash(visit, asked.user)
        wanted = asked.drawing(artist)
        if gateway.moderation.is_after:
            wanted = wanted.model_copy(update={"preview_every": 0})  # what is not checked is not sent
        sketch = artist.plan(visit, wanted)
    await gateway.moderation.before(visit, [text for text in (wanted.prompt, wanted.negative_prompt) if text])
    with visit.watch.stage("plan"):
        order = replace(sketch.order(visit), whole=not asked.stream)
    drawing = _Drawing(gateway.moderation, visit, sketch, order, out)
    async with aclosing(gateway.passage.messages(visit, order)) as messages:
        async for message in messages:
            if (item := drawing.builder.add(message)) is not None:
                await drawing.take(item, asked)
    await drawing.end(asked)


class _Drawing:
    """One request's pictures on their way."""

    def __init__(self, moderation: Moderation, visit: Visit, sketch: Sketch, order: Order, out: Out) -> None:
        self.builder = DrawingBuilder()
        self._moderation, self._visit, self._sketch, self._order, self._out = moderation, visit, sketch, order, out
        self._plan, self._created = sketch.plan, int(time.time())
        self._partials: Counter[int] = Counter()  # sent, by the picture's index
        self._pictures: dict[int, Drawn] = {}  # as they may be sent

    async def take(self, item: Encoded, asked: ImagesRequest) -> None:
        """Raises ContentRefused, Unavailable or QueueFull, where the check of contents does."""
        if isinstance(item, Preview):
            number = self._partials[item.index]
            if asked.stream and number < asked.partial_images:
                self._partials[item.index] += 1
                made = partial(partial_image, item, number, self._plan, self._created)
                await self._out.event_of(await written(len(item.data), made), name=PARTIAL)
        elif isinstance(item, Drawn):
            picture = replace(item, data=await self._moderation.after_picture(self._visit, item))
            self._pictures[item.index] = picture
            if asked.stream and len(self._pictures) < len(self._plan.pictures):
                await self._complete(picture, {})  # the last is told with the account, which comes after it

    async def end(self, asked: ImagesRequest) -> None:
        """The rest of the stream, or the whole answer. Raises ServerError or Unavailable where pictures are missing."""
        report = self.builder.report()
        self._visit.reported(report)
        if len(self._pictures) < len(self._plan.pictures):
            raise Unavailable("the server ended the drawing before it was complete", fix="ask again")
        price = self._sketch.price_of(report)
        self._visit.price = float(price.amount)
        more = {"proteus": account(self._visit, self._order, report, price, **bill(report))}
        if asked.stream:
            await self._complete(list(self._pictures.values())[-1], more)
            await self._out.end()
            return
        pictures = [picture for _, picture in sorted(self._pictures.items())]
        num_bytes = sum(len(picture.data) for picture in pictures)
        await self._out.whole(await written(num_bytes, partial(whole, pictures, self._plan, self._created, more)))

    async def _complete(self, picture: Drawn, more: Mapping[str, Any]) -> None:
        made = partial(completed, picture, self._plan, self._created, more)
        await self._out.event_of(await written(len(picture.data), made), name=COMPLETED)
