"""A router in front of real servers: who leaves stops the work, and of two servers either may be restarted or die."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from proteus.client import Client
from proteus.client.draw_request import build_draw
from proteus.client.request import build_request, question_messages
from proteus.client.response import AnswerBuilder
from proteus.client.wire import read_tensors
from proteus.gateway.order import Order
from proteus.gateway.routing.router import Router
from proteus.launcher import Server
from proteus.launcher.drain import drain
from proteus.launcher.health import HealthServer
from proteus.launcher.repository import Repository
from tests.gateway.routing import TENANT, TEXT, answer, visit
from tests.gateway.routing import routing as routing_of
from tests.server.conftest import DEMO
from tests.server.figures import is_idle, metrics, until
from tests.server.test_ask import CHART, QUESTION
from tests.server.test_draw import PROMPT, nobody_draws
from tests.server.test_stop import CROWD, ENDLESS, SLOTS

NAMES = count()
LEFT = 'proteus_requests_total{outcome="cancelled"}'
OWNER = {"tenant": TENANT.name, "cache_scope": TENANT.cache_scope}


@pytest.fixture(scope="module")
def health(server: Server) -> Iterator[HealthServer]:
    with HealthServer(server, port=0) as serving:
        yield serving


@pytest.fixture
def second(tmp_path: Path) -> Iterator[Server]:
    """It has no model but those that texts need, and starts in a sixth of the time."""
    texts = replace(Repository.of(DEMO), models=("chat", "llm"))
    with Server(texts, log=tmp_path / "server.log", watch=False) as running:
        yield running


def asked(*, pictures: bool = False, whole: bool = False, **options: Any) -> Order:
    name = f"routed {next(NAMES)}"
    shown = [CHART] if pictures else []
    message = build_request(question_messages(QUESTION, shown), shown, {**options, "request_id": name, **OWNER})  # type: ignore[typeddict-item]
    return _order(message, "chat", name, whole=whole, pool="picture" if pictures else "text")


def drawing(**options: Any) -> Order:
    name = f"drawn {next(NAMES)}"
    return _order(build_draw(PROMPT, {**options, "request_id": name, **OWNER}), "draw", name, pool="draw")  # type: ignore[typeddict-item]


def _order(message: Any, door: Any, name: str, **fields: Any) -> Order:
    given = {"model": "demo", "tenant": TENANT, "request_id": name, "latency_class": "text", "price": 0.0}
    return Order(message=message, door=door, **{**given, "resources": TEXT, **fields})


def routing(*servers: tuple[Server, HealthServer]) -> AbstractAsyncContextManager[Router]:
    places = [
        {"grpc": server.ports.grpc_url, "health": health.url.removeprefix("http://")} for server, health in servers
    ]
    pools = {"text": places, "picture": places[:1], "draw": places[:1]}
    return routing_of(pools=pools, health_interval_ms=100, suspect_ms=2_000)


def in_hand(now: Mapping[str, float]) -> float:
    """Answers that the language model computes, or that wait for it."""
    return sum(now[name] for name in now if name.startswith(("proteus_llm_running{", "proteus_llm_waiting{")))


async def text_of(router: Router, order: Order) -> str:
    builder = AnswerBuilder()
    for message in await answer(router, order):
        builder.add(message)
    return builder.answer().text


def test_an_answer_is_that_of_the_server(server: Server, health: HealthServer) -> None:
    async def scenario() -> str:
        async with routing((server, health)) as router:
            return await text_of(router, asked(pictures=True, max_tokens=16))

    with Client(server.ports.grpc_url) as client:
        assert asyncio.run(scenario()) == client.ask(QUESTION, [CHART], max_tokens=16).text


@pytest.mark.parametrize("stage", ["queue", "prefill", "decode", "decode of many", "denoise", "at once"])
def test_who_leaves_stops_the_work_wherever_it_is(server: Server, health: HealthServer, stage: str) -> None:
    orders: Mapping[str, Callable[[], Order]] = {
        "queue": lambda: asked(**ENDLESS),
        "prefill": lambda: asked(pictures=True, **ENDLESS),
        "decode": lambda: asked(**ENDLESS),
        "decode of many": lambda: asked(n=SLOTS, **ENDLESS),
        "denoise": lambda: drawing(steps=100, n=8, preview_every=1),
        "at once": lambda: asked(pictures=True, **ENDLESS),
    }
    idle = nobody_draws if stage == "denoise" else is_idle
    left = 'proteus_draw_requests_total{outcome="cancelled"}' if stage == "denoise" else LEFT

    async def leave(router: Router) -> None:
        messages = router.messages(visit(), orders[stage]())
        reading = asyncio.create_task(anext(messages))
        if stage.startswith(("decode", "denoise")):
            await reading
        elif stage == "prefill":
            await asyncio.sleep(0.02)
        elif stage == "queue":
            assert await asyncio.to_thread(until, server, lambda now: in_hand(now) == CROWD + 1)
            assert not reading.done(), "whoever came before has all slots"
        else:
            await asyncio.sleep(0.002)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await messages.aclose()

    async def scenario() -> None:
        async with routing((server, health)) as router:
            ahead = [router.messages(visit(), asked(**ENDLESS)) for _ in range(CROWD if stage == "queue" else 0)]
            begun = [asyncio.create_task(anext(messages)) for messages in ahead]
            await asyncio.sleep(0)
            await leave(router)
            for task in begun:
                task.cancel()
            await asyncio.gather(*begun, return_exceptions=True)
            for messages in ahead:
                await messages.aclose()
            assert not any(one.outstanding_cost or one.outstanding_requests for one in router.figures())
            gone = before + len(ahead) + (stage != "at once")  # which may have come too early to be a request
            assert await asyncio.to_thread(until, server, lambda now: now.get(left, 0) >= gone and idle(now))

    before = metrics(server).get(left, 0)
    asyncio.run(scenario())


def test_a_stop_ends_the_request_before_another_token_is_read(server: Server, health: HealthServer) -> None:
    """The stream alone is left open: what ends the answer is the stop by its id."""

    async def scenario() -> Mapping[str, Any]:
        async with routing((server, health)) as router:
            order = asked(**ENDLESS)
            async with aclosing(router.messages(visit(), order)) as messages:
                await anext(messages)
                (one,) = router.servers_of("text")
                one.stop("chat", order.request_id, TENANT.cache_scope, TENANT.name)
                *_, last = [message async for message in messages]
            return read_tensors(last.infer_response)

    assert '"finish_reason": "cancelled"' in asyncio.run(scenario())["report"].replace('":"', '": "')


class Load:
    """Short answers without end, four at a time, for as long as something else is done."""

    def __init__(self, router: Router) -> None:
        self.router, self.answers = router, list[str]()

    async def during(self, work: Awaitable[None], *, streams: bool) -> None:
        ended = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for number in range(4):
                group.create_task(self._ask(ended, whole=not streams or number % 2 == 0))
            await work
            ended.set()

    async def _ask(self, ended: asyncio.Event, *, whole: bool) -> None:
        while not ended.is_set():
            self.answers.append(await text_of(self.router, asked(whole=whole, max_tokens=12, min_tokens=12)))
            await asyncio.sleep(0.25)  # a server starts meanwhile, on the same cores

    async def goes_on(self) -> None:
        target = len(self.answers) + 20
        while len(self.answers) < target:
            await asyncio.sleep(0.01)


def restart(server: Server) -> None:
    assert drain(server, at_least_s=0.2, at_most_s=30)
    server.stop()
    server.start()


async def die_at_work(server: Server, load: Load) -> None:
    while not any(one.outstanding_requests for one in load.router.figures() if one.server == server.ports.grpc_url):
        await asyncio.sleep(0.001)
    os.kill(server.pid, signal.SIGKILL)
    await load.goes_on()


async def number_that_are_up(router: Router, wanted: int) -> int:
    for _ in range(200):
        if len(router.servers_of("text")) == wanted:
            break
        await asyncio.sleep(0.05)
    return len(router.servers_of("text"))


@pytest.mark.slow
def test_of_two_servers_one_is_drained_and_restarted_and_then_dies_and_every_request_is_answered(
    server: Server, health: HealthServer, second: Server
) -> None:
    """A restart loses nothing, streams included; a death costs whole answers a retry."""

    async def scenario() -> Load:
        with HealthServer(second, port=0) as second_health:
            async with routing((server, health), (second, second_health)) as router:
                load = Load(router)
                assert await number_that_are_up(router, 2) == 2
                await load.during(asyncio.to_thread(restart, second), streams=True)
                assert router.retries() == {}
                assert await number_that_are_up(router, 2) == 2
                await load.during(die_at_work(second, load), streams=False)
                assert await number_that_are_up(router, 1) == 1
                assert not any(one.outstanding_cost or one.outstanding_requests for one in router.figures())
        return load

    load = asyncio.run(scenario())
    assert set(load.router.retries()) == {second.ports.grpc_url}
    assert all(load.answers)
    assert until(server, is_idle)
