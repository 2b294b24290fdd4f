"""Orders go to the server of their pool with the least outstanding cost; one that fails is answered by another."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import AsyncExitStack, aclosing
from typing import Any

import pytest

from proteus.client.errors import ClientError, ServerError
from proteus.client.response import AnswerBuilder
from proteus.errors import DeadlineExceeded, ProteusError, QueueFull, Unavailable
from proteus.gateway.errors import AnswerTimeout
from proteus.gateway.routing.router import Router, cost_of
from proteus.gateway.routing.servers import WHOLE
from proteus.limits import Resources
from tests.client.peer import REFUSAL, event
from tests.gateway.routing import (
    HUGE_PICTURE,
    ScriptedPeer,
    answer,
    breaks,
    drawing,
    order,
    peers,
    routing,
    says,
    visit,
)

UNAVAILABLE = "unavailable: a stage died; fix: try again in some seconds"
STUB_DIED = "Stub process 'chat_0' is not healthy."
FULL = "queue_full: 64 requests are waiting; limit: [llm] max_queue = 64; fix: try again in 2.5 s"


def text_of(messages: list[Any]) -> str:
    builder = AnswerBuilder()
    for message in messages:
        builder.add(message)
    return "".join(choice.text for choice in builder.answer().choices)


@pytest.mark.parametrize(
    ("vector", "share"),
    [
        (HUGE_PICTURE, 50 / 200),
        (drawing().resources, 1 / 64),
    ],
)
def test_the_cost_is_the_largest_part_of_any_resource(vector: Any, share: float) -> None:
    capacity = Resources(requests=64, media_bytes=2**27, decoded_pixels=200_000_000, visual_tokens=16_384)
    assert cost_of(vector, capacity) == int(share * WHOLE)


def test_without_limits_nothing_costs_anything() -> None:
    assert cost_of(HUGE_PICTURE, Resources()) == 0


def test_a_server_with_one_huge_picture_gets_fewer_texts() -> None:
    async def scenario() -> Counter[str]:
        with peers(2) as two:
            async with routing(*(peer.url for peer in two)) as router, AsyncExitStack() as open_ones:
                servers: Counter[str] = Counter()
                for number in range(15):
                    on = visit()
                    asked = order("never end", resources=HUGE_PICTURE) if number == 0 else order("never end")
                    messages = await open_ones.enter_async_context(aclosing(router.messages(on, asked)))
                    await anext(messages)
                    servers[on.server] += 1
                return servers

    assert sorted(asyncio.run(scenario()).values()) == [1, 14]


def test_equals_take_turns() -> None:
    async def scenario() -> list[str]:
        with peers(3) as three:
            async with routing(*(peer.url for peer in three)) as router:
                went = []
                for _ in range(6):
                    on = visit()
                    await answer(router, order(), on)
                    went.append(on.server)
                return went

    went = asyncio.run(scenario())
    assert went[:3] == went[3:]
    assert len(set(went)) == 3


def test_each_kind_of_order_goes_to_its_pool() -> None:
    async def scenario() -> list[str]:
        with peers(3) as three:
            text, picture, draw = ([{"grpc": peer.url}] for peer in three)
            async with routing(three[0].url, pools={"text": text, "picture": picture, "draw": draw}) as router:
                visits = [visit() for _ in range(3)]
                for on, asked in zip(visits, (order(), order(pool="picture"), drawing()), strict=True):
                    await answer(router, asked, on)
                return [[peer.url for peer in three].index(on.server) for on in visits]

    assert asyncio.run(scenario()) == [0, 1, 2]


def test_a_pool_that_is_down_takes_no_other_with_it() -> None:
    async def scenario() -> Unavailable:
        with peers(2) as (well, gone):
            gone.stop()
            async with routing(well.url, pools={"draw": [{"grpc": gone.url}]}) as router:
                assert [router.ready(pool) for pool in ("text", "picture", "draw")] == [True, True, False]
                assert len(router.servers_of("text")) == 1
                assert text_of(await answer(router, order())) == "one two three "
                with pytest.raises(Unavailable, match="no server of the pool 'draw' is ready") as refused:
                    await answer(router, drawing())
                return refused.value

    assert ServerError.parse(str(asyncio.run(scenario()))).retry_after_s == 0.2


FAILURES = {
    "broken before anything": breaks(),
    "broken midway": breaks(after=2),
    "unavailable": says(UNAVAILABLE),
    "stub died": says(STUB_DIED),
    "no such model": says("Request for unknown model: 'chat' is not found"),
    "ended without a report": lambda *_: iter([event("half", (1,))]),
    "full": says(FULL),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_a_whole_answer_that_a_server_fails_to_give_is_given_by_another(failure: str) -> None:
    async def scenario() -> None:
        with peers(2) as (bad, good):
            bad.script = FAILURES[failure]
            async with routing(bad.url, good.url) as router:
                on = visit()
                assert text_of(await answer(router, order(whole=True), on)) == "one two three "
                assert (on.server, on.retries, router.retries()) == (good.url, 1, {bad.url: 1})
                assert good.requests[0].raw_input_contents[0].count(b'"sent"') == 1
                assert not any(one.outstanding_cost or one.outstanding_requests for one in router.figures())

    asyncio.run(scenario())


def test_a_stream_is_retried_before_its_first_message_and_not_after() -> None:
    async def scenario() -> None:
        with peers(2) as (bad, good):
            bad.script = breaks()
            async with routing(bad.url, good.url) as router:
                assert text_of(await answer(router, order())) == "one two three "
            bad.script = breaks(after=1)
            async with routing(bad.url, good.url) as router:
                with pytest.raises(Unavailable, match="went away before the answer was complete"):
                    await answer(router, order())
            assert (bad.asked(), good.asked()) == (2, 1)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "text",
    ["invalid_request: no; fix: yes", "internal: the server could not finish this request", "[x] Triton's own words"],
)
def test_what_is_wrong_with_the_request_is_not_tried_elsewhere(text: str) -> None:
    async def scenario() -> None:
        with peers(2) as two:
            for peer in two:
                peer.script = says(text)
            async with routing(*(peer.url for peer in two)) as router:
                with pytest.raises((ClientError, ProteusError)) as refused:
                    await answer(router, order(whole=True))
                assert "Triton" not in str(refused.value)
                assert sum(peer.asked() for peer in two) == 1
                assert sum(len(peer.stops()) for peer in two) == 0, "it has ended"

    asyncio.run(scenario())


@pytest.mark.parametrize("text", [FULL, REFUSAL])
def test_of_full_servers_two_are_asked_and_the_refusal_is_theirs(text: str) -> None:
    async def scenario() -> None:
        with peers(3) as three:
            for peer in three:
                peer.script = says(text)
            async with routing(*(peer.url for peer in three)) as router:
                with pytest.raises(ServerError, match="64 requests are waiting") as refused:
                    await answer(router, order())
                assert refused.value.code == QueueFull.code
                assert refused.value.retry_after_s == (2.5 if text is FULL else None)
                assert sum(peer.asked() for peer in three) == 2

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("failure", "max_retries", "asked"),
    [("unavailable", 0, 1), ("unavailable", 2, 3), ("broken midway", 0, 1), ("broken midway", 1, 2)],
)
def test_no_more_servers_fail_at_one_order_than_retries_are_allowed(failure: str, max_retries: int, asked: int) -> None:
    async def scenario() -> None:
        with peers(4) as four:
            for peer in four:
                peer.script = FAILURES[failure]
            async with routing(*(peer.url for peer in four), max_retries=max_retries) as router:
                with pytest.raises((ServerError, Unavailable), match="unavailable: "):
                    await answer(router, order(whole=True))
            assert sum(peer.asked() for peer in four) == asked

    asyncio.run(scenario())


@pytest.mark.parametrize("failure", ["broken before anything", "broken midway", "ended without a report"])
def test_an_order_that_kills_servers_kills_two_at_most(failure: str) -> None:
    async def scenario() -> None:
        with peers(4) as four:
            for peer in four:
                peer.script = FAILURES[failure]
            async with routing(*(peer.url for peer in four), max_retries=3) as router:
                with pytest.raises(Unavailable):
                    await answer(router, order(whole=True))
            assert sum(peer.asked() for peer in four) == 2

    asyncio.run(scenario())


def test_servers_that_were_not_reached_were_not_killed_by_it() -> None:
    async def scenario() -> None:
        with peers(4) as four:
            async with routing(*(peer.url for peer in four), health_interval_ms=60_000, max_retries=3) as router:
                for gone in four[:3]:
                    gone.stop()
                for _ in range(4):
                    assert text_of(await answer(router, order())) == "one two three "

    asyncio.run(scenario())


def test_an_order_that_is_late_is_not_tried_again() -> None:
    async def scenario() -> None:
        with peers(2) as (bad, good):

            def slow(*_: Any) -> Any:
                time.sleep(0.2)
                yield from says(UNAVAILABLE)()

            bad.script = slow
            async with routing(bad.url, good.url) as router:
                with pytest.raises(DeadlineExceeded, match="not started in time"):
                    await answer(router, order(deadline_s=time.monotonic() + 0.1))
            assert (bad.asked(), good.asked()) == (1, 0)

    asyncio.run(scenario())


def test_each_server_is_told_when_it_was_sent_and_what_is_left_of_the_deadline() -> None:
    async def scenario() -> tuple[ScriptedPeer, ScriptedPeer]:
        with peers(2) as (bad, good):
            bad.script = says(UNAVAILABLE)
            async with routing(bad.url, good.url) as router:
                await answer(router, order(deadline_s=time.monotonic() + 50))
            return bad, good

    bad, good = asyncio.run(scenario())
    (first,), (second,) = bad.sent, good.sent
    assert first is not None
    assert second is not None
    assert second["ns"] > first["ns"]
    assert 0 < good.documents[0]["deadline_ms"] <= bad.documents[0]["deadline_ms"] <= 50_000


def test_the_door_that_draws_is_not_told_when_it_was_sent_for_it_would_refuse_that() -> None:
    async def scenario() -> list[dict[str, Any] | None]:
        with peers(1) as (peer,):
            async with routing(peer.url) as router:
                await answer(router, drawing())
            return peer.sent

    assert asyncio.run(scenario()) == [None]


def test_who_leaves_stops_the_request_and_nothing_is_left() -> None:
    async def scenario() -> None:
        with peers(1) as (peer,):
            async with routing(peer.url) as router:
                async with aclosing(router.messages(visit(), order("never end"))) as messages:
                    await anext(messages)
                    assert [one.outstanding_requests for one in router.figures() if one.pool == "text"] == [1]
                await asyncio.to_thread(peer.cancelled.wait, 20)
                assert not any(one.outstanding_cost or one.outstanding_requests for one in router.figures())
            assert peer.stops() == [{"request_id": "7f3c", "cache_scope": "acme's", "tenant": "acme"}]

    asyncio.run(scenario())


def test_an_answer_that_takes_too_long_ends_and_is_stopped() -> None:
    async def scenario() -> None:
        with peers(2) as two:
            async with routing(*(peer.url for peer in two), answer_timeout_ms=200) as router:
                with pytest.raises(AnswerTimeout):
                    await answer(router, order("never end"))
            stops = [stop for peer in two for stop in peer.stops()]
            assert [stop["request_id"] for stop in stops] == ["7f3c"]
            assert sum(peer.asked() for peer in two) == 1

    asyncio.run(scenario())


def test_a_server_that_answers_unavailable_comes_after_all_others_but_is_not_taken_away() -> None:
    async def scenario() -> None:
        with peers(2) as (bad, good):
            async with routing(bad.url, good.url, suspect_ms=60_000) as router:
                bad.script = says(UNAVAILABLE)
                await answer(router, order())
                bad.script = None
                for _ in range(4):
                    await answer(router, order())
                assert (bad.asked(), good.asked()) == (1, 5)
                good.script = breaks()
                assert text_of(await answer(router, order())) == "one two three "
                assert (bad.asked(), good.asked()) == (2, 6)

    asyncio.run(scenario())


def test_a_storm_of_leavers_and_failures_leaves_nothing_behind() -> None:
    async def one(router: Router, number: int) -> None:
        asked = order("never end" if number % 3 else "one two", whole=number % 2 == 0, request_id=str(number))
        task = asyncio.create_task(answer(router, asked))
        await asyncio.wait([task], timeout=number % 7 / 100)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def scenario() -> None:
        with peers(2) as two:
            async with routing(*(peer.url for peer in two)) as router:
                await asyncio.gather(*(one(router, number) for number in range(40)))
                assert not any(each.outstanding_cost or each.outstanding_requests for each in router.figures())

    asyncio.run(scenario())
