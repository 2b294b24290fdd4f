"""On its way an order is held and charged for as long and as much as it should be, and its wait is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest

from proteus.deployment import Deployment
from proteus.gateway.errors import AnswerTimeout
from proteus.gateway.gateway import Gateway
from proteus.gateway.openai.account import stages_ms
from proteus.gateway.order import Tenant
from proteus.limits import Resources
from tests.gateway.routing import HUGE_PICTURE, QUICK, TENANT, TEXT, order, peers, visit
from tests.gateway.running import DEMO, in_front_of


@asynccontextmanager
async def gateway_of(*, room: Resources | None = None, **routing: int) -> AsyncIterator[Gateway]:
    """In front of a peer that admits as much as `room`."""
    demo = Deployment.load(DEMO)
    if room is not None:
        demo = demo.model_copy(update={"admission": demo.admission.model_copy(update={"capacity": room})})
    with peers() as (peer,):
        gateway = Gateway(in_front_of(peer.url, deployment=demo, routing={**QUICK, **routing}))
        await gateway.start()
        try:
            yield gateway
        finally:
            await gateway.close()


def test_pictures_hold_their_room_until_a_server_has_begun_to_answer() -> None:
    async def scenario() -> None:
        async with gateway_of() as gateway:
            asked = order("never end", pool="picture", resources=HUGE_PICTURE)
            async with aclosing(gateway.passage.messages(visit(), asked)) as messages:
                await anext(messages)
                held = gateway.shares.rooms["picture"].snapshot()
                assert held.peak["decoded_pixels"] == HUGE_PICTURE.decoded_pixels
                assert held.held["decoded_pixels"] == 0
                assert held.held["visual_tokens"] == HUGE_PICTURE.visual_tokens
                assert gateway.budgets.held(TENANT.name) == HUGE_PICTURE, "the tenant's own budget holds all of it"

    asyncio.run(scenario())


def test_the_wait_for_room_is_told_as_the_stage_queue_with_that_at_the_server() -> None:
    async def scenario() -> None:
        async with gateway_of(room=Resources(requests=1)) as gateway:
            first = gateway.passage.messages(visit(), order("never end"))
            await anext(first)
            waits = visit()
            second = gateway.passage.messages(waits, order())
            waiting = asyncio.create_task(anext(second))
            await asyncio.sleep(0.05)
            await first.aclose()
            await waiting
            await second.aclose()
        own_ms = waits.watch.report_ms()["queue"]
        assert own_ms >= 50
        assert stages_ms(waits, {"queue": 7.0, "total": 9.0})["queue"] == pytest.approx(own_ms + 7.0, abs=0.01)

    asyncio.run(scenario())


def test_who_waited_too_long_for_a_server_has_used_nothing_and_who_kept_one_busy_all() -> None:
    tenant = Tenant(name="acme", cache_scope="acme", per_second={"requests": 0.001}, burst_s=1000)

    async def scenario() -> list[bool]:
        async with gateway_of(answer_timeout_ms=200) as gateway:
            left = []
            for waited_s in (1.0, 0.0):
                on = visit()
                on.arrived_s -= waited_s
                with pytest.raises(AnswerTimeout):
                    async with aclosing(gateway.passage.messages(on, order("never end", tenant=tenant))) as messages:
                        _ = [message async for message in messages]
                on.outcome = AnswerTimeout.code
                gateway.ended(on)
                left.append(gateway.budgets.affords(tenant, TEXT))
            return left

    assert asyncio.run(scenario()) == [True, False]
