"""A client in a process of its own: asks at given moments, whatever the answers, and tells how long each took.

    python -m perf.gateway_client < job.json > answers.jsonl

`direct` is the project's AsyncClient, straight to the server's gRPC port: what a user would do without the gateway.
`gateway` speaks HTTP over connections that are kept: no SDK, so that the gateway is measured and not its client.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import sys
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from typing import Any

from perf.gateway_http import Connections, HttpFailed, chat_body
from perf.pictures import PHOTOGRAPHS, photograph
from proteus.client import Answer, AsyncClient, ClientError, ServerError

SCOPE = "direct"  # of caches: neither way finds what the other has left there
WARM_UP = 20  # asks before the first that counts: connections, and code that is run for the first time
BEGIN_S = 0.2
GATEWAY, DIRECT = "gateway", "direct"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    at_s: float  # after the beginning
    question: str
    picture: bytes | None = None
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    way: str
    url: str
    stream: bool
    seed: int
    seconds: float
    per_second: float
    picture_share: float = 0.0
    tokens: int = 8

    def asks(self) -> list[Ask]:
        """Moments of a Poisson process; the same of one seed, and a question or a picture of no other seed."""
        chance = random.Random(self.seed)
        asks = [self._ask(chance, 0.0) for _ in range(WARM_UP)]
        at_s = chance.expovariate(self.per_second)
        while at_s < self.seconds:
            asks.append(self._ask(chance, at_s))
            at_s += chance.expovariate(self.per_second)
        return asks

    def _ask(self, chance: random.Random, at_s: float) -> Ask:
        seed, kind = chance.randrange(2**31), PHOTOGRAPHS[chance.randrange(2)]
        if chance.random() >= self.picture_share:
            return Ask(at_s=at_s, question=f"What number comes after {seed}?", tokens=self.tokens)
        shown = photograph(kind, seed)
        return Ask(at_s=at_s, question=shown.question, picture=shown.picture, tokens=self.tokens)


@dataclass(slots=True, kw_only=True)
class Answered:
    """One ask. `error` is empty for an answer that is whole."""

    at_s: float
    late_ms: float  # that it was sent after its moment: by this process, whoever is asked
    sent_s: float = 0.0  # on the machine's monotonic clock
    first_ms: float | None = None  # to the first text
    whole_ms: float = 0.0
    picture: bool = False
    error: str = ""
    text: str = ""
    stages_ms: Mapping[str, float] = field(default_factory=dict)  # as who answers tells them


Told = str | Mapping[str, float]  # a piece of text, or at the end the stages
Way = Callable[[Ask], AsyncGenerator[Told, None]]


async def run(job: Job) -> list[Answered]:
    """In the order of their moments."""
    asks = job.asks()
    gc.collect()
    gc.freeze()
    async with AsyncClient(job.url.removeprefix("http://")) as client, Connections(job.url) as connections:

        async def direct(ask: Ask) -> AsyncGenerator[Told, None]:
            options: Any = {"max_tokens": ask.tokens, "min_tokens": ask.tokens, "cache_scope": SCOPE}
            pictures = [] if ask.picture is None else [ask.picture]
            async with aclosing(client.stream(ask.question, pictures, **options)) as items:  # type: ignore[type-var]
                async for item in items:
                    yield item.stages_ms if isinstance(item, Answer) else item.text

        async def gateway(ask: Ask) -> AsyncGenerator[Told, None]:
            body = chat_body(ask.question, ask.picture, ask.tokens, stream=job.stream)
            async with aclosing(connections.ask(body)) as told:
                async for one in told:
                    yield one

        way = {DIRECT: direct, GATEWAY: gateway}[job.way]
        for ask in asks[:WARM_UP]:
            await one(way, ask, time.monotonic())
        return await _all(job, way, asks[WARM_UP:])


async def _all(job: Job, way: Way, asks: list[Ask]) -> list[Answered]:
    begun_s = time.monotonic() + BEGIN_S
    tasks: list[asyncio.Task[Answered]] = []
    for ask in asks:
        await asyncio.sleep(begun_s + ask.at_s - time.monotonic())
        tasks.append(asyncio.create_task(one(way, ask, begun_s)))
    return await asyncio.gather(*tasks)


async def one(way: Way, ask: Ask, begun_s: float) -> Answered:
    """Its times count from when it is sent, and `late_ms` says how late that was."""
    sent_s = time.monotonic()
    answered = Answered(
        at_s=ask.at_s, sent_s=sent_s, late_ms=(sent_s - begun_s - ask.at_s) * 1e3, picture=ask.picture is not None
    )
    try:
        async with aclosing(way(ask)) as told:
            async for item in told:
                if not isinstance(item, str):
                    answered.stages_ms = dict(item)
                elif item:
                    answered.text += item
                    if answered.first_ms is None:
                        answered.first_ms = (time.monotonic() - sent_s) * 1e3
    except ClientError as error:
        answered.error = error.code if isinstance(error, ServerError) else type(error).__name__
    except (HttpFailed, OSError) as error:
        answered.error = str(error) or type(error).__name__
    answered.whole_ms = (time.monotonic() - sent_s) * 1e3
    return answered


def main() -> int:
    job = Job(**json.load(sys.stdin))
    for answered in asyncio.run(run(job)):
        print(json.dumps(asdict(answered)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
