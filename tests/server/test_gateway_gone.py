"""Clients that leave: wherever their request is, its work ends, and nothing of it is left in gateway or server."""

from __future__ import annotations

import asyncio
import base64
import logging
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest

from proteus.launcher import Server
from tests.gateway.running import Running, in_front_of, started
from tests.gateway.wire import connect, eventually, request, status_of, until_closed
from tests.server.figures import is_idle, metrics, until
from tests.server.test_ask import CHART
from tests.server.test_draw import LONG, PROMPT, nobody_draws
from tests.server.test_stop import CROWD, ENDLESS, SLOTS

CLIENTS, AT_ONCE = 200, 24
PICTURE = {"url": "data:image/png;base64," + base64.b64encode(CHART.read_bytes()).decode()}
CANCELLED = 'proteus_requests_total{outcome="cancelled"}'
DECODING = 'proteus_llm_running{phase="decode"}'
DRAW_CANCELLED = 'proteus_draw_requests_total{outcome="cancelled"}'
DRAW_PATH, CHAT_PATH = "/v1/images/generations", "/v1/chat/completions"


def chat(*, pictures: int = 0, **options: Any) -> bytes:
    content = [{"type": "text", "text": "What is it?"}, *[{"type": "image_url", "image_url": PICTURE}] * pictures]
    document = {"model": "demo", "messages": [{"role": "user", "content": content}], "stream": True, **options}
    return request(document, path=CHAT_PATH)


def draw(**options: Any) -> bytes:
    document = {"model": "demo-draw", "prompt": PROMPT, **LONG, "size": "64x64", "stream": True, "partial_images": 3}
    return request(document | options, path=DRAW_PATH)


@pytest.fixture(scope="module")
def running(server: Server) -> Iterator[Running]:
    limits = {"health_interval_ms": 600_000}  # no task of its own comes and goes
    with started(in_front_of(server.ports.grpc_url, routing=limits)) as one:
        yield one


@pytest.fixture
def nothing_left(server: Server, running: Running, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Afterwards as before: no request, byte, connection, task, nothing in hand at a server, and no word in the log."""
    with connect(running.url) as one:
        one.sendall(chat(max_tokens=1))
        assert status_of(one.recv(65_536)) == 200
    eventually(lambda: is_empty(running))
    tasks = len(asyncio.all_tasks(running.loop))
    with caplog.at_level(logging.WARNING):
        yield
        eventually(lambda: is_empty(running))
        eventually(lambda: len(asyncio.all_tasks(running.loop)) <= tasks)
    assert [record.getMessage() for record in caplog.records] == []
    assert until(server, is_idle)
    assert until(server, nobody_draws)


def is_empty(running: Running) -> bool:
    gateway = running.gateway
    in_hand = [one.outstanding_requests for one in gateway.router.figures()]
    return not any((gateway.visits.open, gateway.connections.open, *gateway.seats.figures().values(), *in_hand))


def leaves(running: Running, sent: bytes, *, once: Callable[[bytes], bool] | None) -> None:
    """Sends a request and closes the connection, at once or as soon as what came so far says so."""
    with connect(running.url) as one:
        one.sendall(sent)
        came = b""
        while once is not None and not once(came):
            piece = one.recv(65_536)
            assert piece, came
            came += piece


def cancelled_since(server: Server, before: Mapping[str, float], name: str) -> bool:
    return until(server, lambda now: now.get(name, 0) > before.get(name, 0))


@pytest.mark.usefixtures("nothing_left")
def test_who_leaves_during_an_upload_has_asked_for_nothing(server: Server, running: Running) -> None:
    before = metrics(server).get("proteus_llm_ended_total", 0)
    with connect(running.url) as one:
        one.sendall(chat(pictures=2)[:-100])
        eventually(lambda: running.gateway.seats.figures()["open_bytes"] > 0)
    eventually(lambda: running.gateway.visits.open == 0)
    assert metrics(server).get("proteus_llm_ended_total", 0) == before


@pytest.mark.usefixtures("nothing_left")
def test_who_leaves_while_it_is_planned_is_not_waited_for(running: Running) -> None:
    leaves(running, chat(pictures=2, **ENDLESS), once=None)


@pytest.mark.usefixtures("nothing_left")
def test_who_leaves_the_queue_of_the_server_leaves_it(server: Server, running: Running) -> None:
    before = metrics(server)
    with ExitStack() as ahead:
        for _ in range(CROWD):
            ahead.enter_context(connect(running.url)).sendall(chat(**ENDLESS))
        eventually(lambda: running.gateway.visits.open == CROWD)
        with connect(running.url) as late:
            late.sendall(chat(**ENDLESS))
            eventually(lambda: running.gateway.visits.open == CROWD + 1)
            assert until(server, lambda now: any(now[name] for name in now if name.startswith("proteus_llm_waiting")))
            assert not any(running.gateway.shares.figures().values()), "they wait at the server"
        eventually(lambda: running.gateway.visits.open <= CROWD)
        assert cancelled_since(server, before, CANCELLED)


@pytest.mark.usefixtures("nothing_left")
def test_who_leaves_the_queue_of_the_gateway_leaves_it(server: Server, running: Running) -> None:
    """More than a server's whole room is taken."""
    ahead = 0
    with ExitStack() as open_ones:
        while not running.gateway.shares.figures()["draw"]:
            open_ones.enter_context(connect(running.url)).sendall(draw())
            ahead += 1
            eventually(lambda: running.gateway.visits.open == ahead)  # noqa: B023
            assert ahead < 64
    eventually(lambda: running.gateway.shares.figures()["draw"] == 0)
    assert until(server, nobody_draws)


@pytest.mark.parametrize("fields", [{}, {"n": SLOTS}, {"stream": False}])
@pytest.mark.usefixtures("nothing_left")
def test_who_leaves_during_decode_ends_it(server: Server, running: Running, fields: dict[str, Any]) -> None:
    before = metrics(server)
    if fields.get("stream", True):
        leaves(running, chat(**ENDLESS, **fields), once=lambda came: came.count(b'"content":"') > 3)
    else:
        assert until(server, lambda now: now[DECODING] == 0)  # told once a second
        with connect(running.url) as one:
            one.sendall(chat(**ENDLESS, **fields))
            assert until(server, lambda now: now[DECODING] > 0)
    assert cancelled_since(server, before, CANCELLED)


@pytest.mark.usefixtures("nothing_left")
def test_who_leaves_before_the_first_token_ends_it(server: Server, running: Running) -> None:
    """The server has it: it encodes, or prefills. Of some that leave at once, one may not be on its way yet."""
    before = metrics(server)
    for _ in range(4):
        with connect(running.url) as one:
            one.sendall(chat(pictures=2, **ENDLESS | {"max_tokens": 400}))
            eventually(lambda: any(figures.outstanding_requests for figures in running.gateway.router.figures()))
        eventually(lambda: running.gateway.visits.open == 0)
    assert cancelled_since(server, before, CANCELLED)


@pytest.mark.usefixtures("nothing_left")
def test_who_leaves_during_denoise_ends_it(server: Server, running: Running) -> None:
    before = metrics(server)
    leaves(running, draw(), once=lambda came: b"partial_image" in came)
    assert cancelled_since(server, before, DRAW_CANCELLED)


@pytest.mark.usefixtures("nothing_left")
def test_two_hundred_clients_that_leave_at_any_moment_leave_nothing(running: Running) -> None:
    chance = random.Random(8)
    kinds = (
        lambda: chat(max_tokens=chance.choice((1, 40, 400))),
        lambda: chat(pictures=1 + chance.randrange(3), max_tokens=200),
        lambda: chat(stream=False, n=2, max_tokens=100),
        lambda: draw(n=1 + chance.randrange(3), steps=chance.choice((2, 40)), stream=chance.random() < 0.5),
    )
    room = asyncio.Semaphore(AT_ONCE)

    async def leave() -> None:
        async with room:
            sent = chance.choice(kinds)()
            reader, writer = await asyncio.open_connection("127.0.0.1", int(running.url.rpartition(":")[2]))
            writer.write(sent if chance.random() < 0.9 else sent[: chance.randrange(len(sent))])
            try:
                async with asyncio.timeout(chance.choice((0.0, 0.01, 0.1, 0.4)) * chance.random()):
                    await reader.read(-1)
            except TimeoutError:
                writer.transport.abort() if chance.random() < 0.5 else writer.close()

    async def storm() -> None:
        await asyncio.gather(*(leave() for _ in range(CLIENTS)))

    asyncio.run(storm())
    with connect(running.url) as one:
        one.sendall(request(None, "Connection: close"))
        assert b"finish_reason" in until_closed(one)
