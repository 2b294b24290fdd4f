"""What is sent to one server, and how what it answers is held back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import Any

import pytest

from proteus.gateway.errors import AnswerTimeout
from proteus.gateway.routing import sending
from proteus.gateway.run import in_a_loop
from tests.client.peer import REPORT, Peer, event, peer_to_stop
from tests.gateway.routing import ScriptedPeer, answer, order, peers, routing, visit


@pytest.mark.parametrize(("room_bytes", "is_held"), [(10**6, True), (0, False)])
def test_a_whole_answer_is_held_back_to_its_end_where_there_is_room(room_bytes: int, is_held: bool) -> None:
    async def scenario() -> None:
        with peers(1) as (peer,):
            peer.script = lambda *_: iter([event("half ", (1,)), event("", (2,), REPORT)])
            async with routing(peer.url) as router:
                sent = sending.messages_of(router.servers_of("text")[0], order(), timeout_s=5, traceparent="")
                room = sending.HoldingRoom(room_bytes)
                async with aclosing(sent), aclosing(sending.held_back(sent, room)) as messages:
                    await anext(messages)
                    assert (room.left_bytes < room_bytes) is is_held
                    assert len([message async for message in messages]) == 1
                assert room.left_bytes == room_bytes

    asyncio.run(scenario())


def test_an_answer_that_was_held_back_lets_others_have_their_turn_while_it_is_given() -> None:
    async def scenario() -> int:
        async def messages() -> AsyncIterator[Any]:
            for number in range(20 * sending.GIVEN_AT_ONCE):
                yield event("x", (number,))

        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        running = asyncio.create_task(others())
        async for _ in sending.held_back(messages(), sending.HoldingRoom()):
            pass
        running.cancel()
        return turns

    assert asyncio.run(scenario()) >= 20


@pytest.mark.parametrize(
    ("sent", "passed_on"),
    [
        ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", True),
        ("", False),
        ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\nx: y", False),
    ],
)
def test_a_trace_that_begins_at_the_client_is_passed_on(sent: str, passed_on: bool) -> None:
    async def scenario() -> list[str]:
        with peers(1) as (peer,):
            seen: list[str] = []

            def script(peer: Peer, document: dict[str, Any], context: Any) -> Any:
                seen.extend(value for key, value in context.invocation_metadata() if key == "traceparent")
                return super(ScriptedPeer, peer)._script("chat", document)(peer, document, context)  # type: ignore[misc]

            peer.script = script
            async with routing(peer.url) as router:
                on = visit()
                on.traceparent = sent
                await answer(router, order(), on)
            return seen

    assert asyncio.run(scenario()) == ([sent] if passed_on else [])


def test_an_answer_is_too_late_in_time_also_where_the_server_reads_nothing_any_more() -> None:
    """gRPC itself tells that the time is over once all that it writes has gone out, or has failed after 20 s.

    So it does of the server's being told to stop, which the gateway's end waits for.
    """

    async def scenario(url: str, stop: Callable[[], None]) -> float:
        async with routing(url) as router:
            assert await answer(router, order())
            stop()
            large = order("x" * 60_000_000)
            begun_s = time.monotonic()
            sent = sending.messages_of(router.servers_of("text")[0], large, timeout_s=0.5, traceparent="")
            with pytest.raises(AnswerTimeout):
                async with aclosing(sent):
                    await anext(sent)
        return time.monotonic() - begun_s

    with peer_to_stop() as (url, stop):
        assert asyncio.run(scenario(url, stop)) < 10


def says_nothing(_peer: Peer, _document: dict[str, Any], context: Any) -> Iterator[Any]:
    while context.is_active():
        time.sleep(0.005)
    yield from ()


def test_whose_time_is_over_is_told_so_whichever_clock_ends_it() -> None:
    """On libuv the end of a timer may be a little after the time at which it rings, and one of no time has no end."""

    async def scenario() -> None:
        with peers(1) as (peer,):
            async with routing(peer.url) as router:
                peer.script = says_nothing
                (server,) = router.servers_of("text")
                for timeout_s in (*[0.02] * 40, 0.0003):
                    sent = sending.messages_of(server, order(), timeout_s=timeout_s, traceparent="")
                    with pytest.raises(AnswerTimeout):
                        async with aclosing(sent):
                            await anext(sent)

    in_a_loop(scenario())
