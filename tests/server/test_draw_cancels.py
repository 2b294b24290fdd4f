"""Two hundred requests to draw that end at any moment and in any way: whoever stays sees nothing of it."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any

import pytest

from proteus.client import AsyncClient, Client, Drawing, Drawn, Preview
from proteus.launcher import Server
from tests.server.figures import metrics, until
from tests.server.test_draw import LONG, PROMPT, files, nobody_draws

CANCELS, AT_ONCE = 200, 16
SIZES = ("32x32", "48x48", "16x32")
STAYING: tuple[dict[str, Any], ...] = (
    {"seed": 1, "steps": 20, "guidance": 3.0, "sampler": "euler", "size": "32x32"},
    {"seed": 2, "steps": 50, "guidance": 1.0, "sampler": "dpmpp_2m", "size": "48x48"},
    {"seed": 3, "steps": 4, "guidance": 3.0, "sampler": "heun", "size": "16x32", "n": 2},
)
ENDED = 'proteus_draw_ended_total{outcome="%s"}'


@pytest.fixture
def client(draw_server: Server) -> Iterator[Client]:
    with Client(draw_server.ports.grpc_url) as made:
        yield made


async def leaves_at_any_moment(client: AsyncClient, chance: random.Random, options: dict[str, Any]) -> None:
    drawing = asyncio.create_task(client.draw(PROMPT, **options))
    await asyncio.wait([drawing], timeout=chance.uniform(0, 0.4))
    drawing.cancel()


async def leaves_at_a_preview(client: AsyncClient, chance: random.Random, options: dict[str, Any]) -> None:
    by = chance.choice(("linear", "decoder"))
    async with aclosing(client.stream_draw(PROMPT, **options, preview_every=1, preview_by=by)) as stream:
        async for item in stream:
            if isinstance(item, Preview):
                return


async def leaves_at_the_first_picture_of_many(
    client: AsyncClient, chance: random.Random, options: dict[str, Any]
) -> None:
    """The others are being decoded, or encoded."""
    options = {**options, "n": 8, "steps": 1 + chance.randrange(2)}
    async with aclosing(client.stream_draw(PROMPT, **options)) as stream:
        async for item in stream:
            if isinstance(item, Drawn):
                return


async def stopped_by_its_id(client: AsyncClient, chance: random.Random, options: dict[str, Any]) -> None:
    """As early as it has a name, which is before its first step, or later."""
    name = f"storm {options['seed']}"
    drawing = asyncio.create_task(client.draw(PROMPT, **options, request_id=name, tenant="storm"))
    await asyncio.sleep(chance.choice((0.0, 0.0, 0.2)) * chance.random())
    while not drawing.done() and not await client.stop(name, model="draw", tenant="storm"):
        assert await client.stop(name, model="draw", tenant="somebody else") == 0
    ended = await drawing
    assert ended.finish_reason in ("cancelled", "done")
    assert len(ended.pictures) == ended.usage.images <= options["n"]
    assert await client.stop(name, model="draw", tenant="storm") == 0


WAYS: tuple[Callable[[AsyncClient, random.Random, dict[str, Any]], Awaitable[None]], ...] = (
    leaves_at_any_moment,
    leaves_at_a_preview,
    leaves_at_the_first_picture_of_many,
    stopped_by_its_id,
)


async def storm(url: str) -> None:
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(client: AsyncClient, number: int) -> None:
        chance = random.Random(number)
        options = {
            "seed": number,
            "steps": chance.randint(5, 100),
            "guidance": chance.choice((1.0, 3.0)),
            "sampler": chance.choice(("euler", "ddim", "heun", "dpmpp_2m")),
            "size": chance.choice(SIZES),
            "n": chance.randint(1, 3),
        }
        async with gate:
            await WAYS[number % len(WAYS)](client, chance, options)

    async with AsyncClient(url) as client:
        await asyncio.gather(*(one(client, number) for number in range(CANCELS)))


def test_two_hundred_cancels_change_nobodys_picture_and_leave_nothing(draw_server: Server, client: Client) -> None:
    alone = [files(client.draw(PROMPT, **options)) for options in STAYING]
    assert until(draw_server, nobody_draws)
    before = metrics(draw_server)
    over = threading.Event()

    def stay(number: int) -> list[bool]:
        equal = []
        for turn in itertools.count(number):
            if over.is_set() and equal:
                return equal
            which = turn % len(STAYING)
            equal.append(files(client.draw(PROMPT, **STAYING[which])) == alone[which])
        raise AssertionError

    with ThreadPoolExecutor(len(STAYING)) as threads:
        staying = [threads.submit(stay, number) for number in range(len(STAYING))]
        try:
            asyncio.run(storm(draw_server.ports.grpc_url))
        finally:
            over.set()
        equal = [one for each in staying for one in each.result(60)]
    assert all(equal) and len(equal) >= len(STAYING)
    assert until(draw_server, nobody_draws)
    assert [files(client.draw(PROMPT, **options)) for options in STAYING] == alone
    after = metrics(draw_server)
    cancelled = after[ENDED % "cancelled"] - before.get(ENDED % "cancelled", 0)
    assert cancelled > CANCELS / 2, "most of them ended while they were drawn"
    assert {name for name in after if name.startswith("proteus_draw_ended_total")} <= {
        ENDED % "done",
        ENDED % "cancelled",
    }


@pytest.mark.parametrize("other", [{"tenant": "b"}, {"cache_scope": "b"}, {}], ids=["tenant", "scope", "none"])
def test_another_tenant_stops_nothing_and_is_told_what_a_stranger_is(client: Client, other: dict[str, str]) -> None:
    begun = threading.Event()

    def draw() -> Drawing:
        options = {**LONG, "request_id": "mine", "tenant": "a", "cache_scope": "a", "preview_every": 1}
        for item in client.stream_draw(PROMPT, **options):
            begun.set()
            last = item
        assert isinstance(last, Drawing)
        return last

    with ThreadPoolExecutor(1) as threads:
        drawing = threads.submit(draw)
        assert begun.wait(30)
        assert client.stop("mine", model="draw", **other) == 0
        assert client.stop("never was", model="draw", **other) == 0
        assert not drawing.done()
        assert client.stop("mine", model="draw", tenant="a", cache_scope="a") == 1
        assert drawing.result(30).finish_reason == "cancelled"
    assert client.stop("mine", model="draw", tenant="a", cache_scope="a") == 0
