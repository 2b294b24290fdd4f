"""Servers come, go, break and come back; what is known of each decides whether it gets work."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import aclosing, nullcontext
from typing import Any

import pytest
from pydantic import ValidationError

from proteus import lookup
from proteus.errors import Unavailable
from proteus.gateway.routing import pools, servers
from proteus.gateway.routing.router import Router
from proteus.launcher.health import HealthServer
from proteus.limits_gateway import GatewayPools, LightModel, ServerAddress
from tests.client.peer import Peer
from tests.gateway.routing import QUICK, ScriptedPeer, answer, breaks, drawing, order, peers, routing, visit
from tests.gateway.running import in_front_of
from tests.launcher.test_health import Told

WAIT_S = 10.0


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not holds():
            await asyncio.sleep(0.005)


def health_of(told: Told) -> HealthServer:
    """Twice a second is too seldom for a test."""
    serving = HealthServer(told, port=0)
    serving._health._asking = lambda _: nullcontext(lambda model: True)
    return serving


def test_a_server_that_turns_unready_gets_nothing_new_and_ends_what_it_has() -> None:
    told = Told()

    async def scenario() -> None:
        with peers() as (peer,), health_of(told) as health:
            text = [{"grpc": peer.url, "health": health.url.removeprefix("http://")}]
            async with routing(peer.url, pools={"text": text}) as router:
                async with aclosing(router.messages(visit(), order("never end"))) as messages:
                    await anext(messages)
                    told.not_ready = "draining"
                    await until(lambda: not router.ready("text"))
                    with pytest.raises(Unavailable, match="no server of the pool 'text'"):
                        await answer(router, order())
                    assert {one.why for one in router.figures()} == {"draining"}
                    peer.cancelled.set()  # here: lets the script end
                    with pytest.raises(Unavailable):
                        await anext(messages)  # its end without a report, not a cancel
                told.not_ready = None
                await until(lambda: router.ready("text"))
                await answer(router, order())

    asyncio.run(scenario())


def test_a_server_that_is_well_but_not_connected_gets_nothing() -> None:
    async def scenario() -> None:
        with peers() as (gone,), health_of(Told()) as health:
            gone.stop()
            text = [{"grpc": gone.url, "health": health.url.removeprefix("http://")}]
            async with routing(gone.url, pools={"text": text}, health_timeout_ms=100) as router:
                assert not router.ready("text")

    asyncio.run(scenario())


def test_a_broken_connection_takes_a_server_out_until_its_health_says_that_it_is_ready() -> None:
    async def scenario() -> None:
        with peers() as (peer,):
            async with routing(peer.url, health_interval_ms=60_000) as router:
                peer.script, peer.ready = breaks(), False
                with pytest.raises(Unavailable):
                    await answer(router, order())
                assert not router.ready("text"), "without a question"
                assert not router.ready("draw"), "it is one server in all of its pools"
                await until(lambda: {one.why for one in router.figures()} == {"Triton is not ready"})

        with peers() as (peer,):
            async with routing(peer.url, health_interval_ms=60_000) as router:
                peer.script = breaks()
                with pytest.raises(Unavailable):
                    await answer(router, order())
                peer.script = None
                await until(lambda: router.ready("text"))  # asked at once, not in a minute
                await answer(router, order())

    asyncio.run(scenario())


def test_what_was_said_before_it_broke_does_not_count() -> None:
    async def scenario() -> None:
        with peers() as (peer,):
            server = servers.TritonServer(peer.url, None, _routing())
            await server.look()
            assert server.up
            asking = asyncio.create_task(server.look())
            await asyncio.sleep(0)
            server.broke(server.breaks)
            await asking
            assert not server.up
            await server.look()
            assert server.up
            await server.close()

    asyncio.run(scenario())


def test_streams_that_break_together_break_it_once() -> None:
    async def scenario() -> None:
        with peers() as (peer,):
            server = servers.TritonServer(peer.url, None, _routing())
            before = server.breaks
            server.broke(before)
            await server.look()
            server.broke(before)  # a stream of before, whose end was seen late
            assert server.up
            await server.close()

    asyncio.run(scenario())


def test_one_question_without_an_answer_is_not_the_end_and_two_are(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        with peers() as (peer,):
            server = servers.TritonServer(peer.url, None, _routing())
            await server.look()

            async def never(*_: Any) -> Any:
                raise TimeoutError

            monkeypatch.setattr(servers, "ask_triton", never)
            await server.look()
            assert server.up
            await server.look()
            assert not server.up
            await server.close()

    asyncio.run(scenario())


def test_what_a_server_has_that_gives_no_sign_of_life_is_asked_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    really = servers.ask_triton

    async def scenario() -> None:
        with peers(2) as (silent, good):
            async with routing(silent.url, good.url) as router:
                silent.script = lambda *_: iter(lambda: silent.cancelled.wait(20) and None, None)
                answering = asyncio.create_task(answer(router, order(whole=True)))
                await until(lambda: silent.asked() == 1)
                assert not answering.done()
                (stub,) = (one.stub for one in router.servers_of("text") if one.address == silent.url)

                async def ask(asked: Any, *more: Any) -> Any:
                    if asked is stub:
                        raise TimeoutError
                    return await really(asked, *more)

                monkeypatch.setattr(servers, "LOST_S", 0.1)
                monkeypatch.setattr(servers, "ask_triton", ask)
                assert len(await asyncio.wait_for(answering, WAIT_S)) == 4
                assert router.retries() == {silent.url: 1}

    asyncio.run(scenario())


def test_a_question_that_fails_in_an_unknown_way_takes_the_server_out_and_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        with peers() as (peer,):
            async with routing(peer.url) as router:

                async def fail(*_: Any) -> Any:
                    raise RuntimeError("not foreseen")

                with monkeypatch.context() as patch:
                    patch.setattr(servers, "ask_triton", fail)
                    await until(lambda: not router.ready("text"))
                await until(lambda: router.ready("text"))

    asyncio.run(scenario())


def test_servers_behind_a_name_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "LOOK_UP_S", 0.02)
    behind = {"127.0.0.1"}

    async def found(*_: Any) -> frozenset[str]:
        if not behind:
            raise socket.gaierror("not found")
        return frozenset(behind)

    monkeypatch.setattr(pools, "addresses", found)

    def known(router: Router) -> set[str]:
        return {one.server for one in router.figures()}

    async def scenario() -> None:
        with peers() as (peer,):
            port = peer.url.rpartition(":")[2]
            one, other = (f"{host}:{port}" for host in ("127.0.0.1", "127.0.0.2"))
            async with routing(f"language.example:{port}") as router:
                assert known(router) == {one}
                messages = router.messages(visit(), order("never end"))
                await anext(messages)
                behind.add("127.0.0.2")
                await until(lambda: known(router) == {one, other})
                behind.discard("127.0.0.1")
                await until(lambda: not any(server.address == one for server in router.servers_of("text")))
                assert {each.server: each.outstanding_requests for each in router.figures() if each.pool == "text"} == {
                    one: 1,
                    other: 0,
                }, "it ends what it has"
                await messages.aclose()
                await until(lambda: known(router) == {other})
                behind.clear()
                await asyncio.sleep(0.1)
                assert known(router) == {other}, "a name that is not found now is as it was"

    asyncio.run(scenario())


def test_a_server_that_goes_and_comes_again_while_it_ends_something_is_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pools, "LOOK_UP_S", 0.02)
    behind = {"127.0.0.1"}

    async def found(*_: Any) -> frozenset[str]:
        return frozenset(behind)

    monkeypatch.setattr(pools, "addresses", found)

    async def scenario() -> None:
        with peers() as (peer,):
            async with routing(f"language.example:{peer.url.rpartition(':')[2]}") as router:
                async with aclosing(router.messages(visit(), order("never end"))) as messages:
                    await anext(messages)
                    behind.clear()
                    await until(lambda: not router.ready("text"))
                    behind.add("127.0.0.1")
                    await until(lambda: router.ready("text"))
                    told = [one.outstanding_requests for one in router.figures()]
                    assert sorted(told) == [0, 0, 1], "in each of its pools once, and what it has is known"
                for _ in range(3):
                    await asyncio.sleep(0.02)  # it has ended all, and is not closed for it
                    await answer(router, order())

    asyncio.run(scenario())


def test_a_server_whose_health_cannot_be_asked_is_down_and_harms_no_other() -> None:
    async def scenario() -> None:
        with peers(2) as (well, other):
            nowhere = [{"grpc": other.url, "health": "no..name:8003"}]
            async with routing(well.url, pools={"draw": nowhere}) as router:
                assert [router.ready(pool) for pool in ("text", "draw")] == [True, False]
                await answer(router, order())

    asyncio.run(scenario())


def test_without_a_server_the_gateway_starts_and_takes_the_first_that_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "LOOK_UP_S", 0.02)
    behind: set[str] = set()

    async def found(*_: Any) -> frozenset[str]:
        if not behind:
            raise socket.gaierror("not found")
        return frozenset(behind)

    monkeypatch.setattr(pools, "addresses", found)

    async def scenario() -> None:
        with peers() as (peer,):
            async with routing(f"language.example:{peer.url.rpartition(':')[2]}") as router:
                assert not router.ready("text")
                behind.add("127.0.0.1")
                await until(lambda: router.ready("text"))

    asyncio.run(scenario())


def test_health_is_asked_for_at_the_servers_own_address(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told()

    async def found(*_: Any) -> frozenset[str]:
        return frozenset({"127.0.0.1"})

    monkeypatch.setattr(pools, "addresses", found)

    async def scenario() -> None:
        with peers() as (peer,), health_of(told) as health:
            grpc_port, health_port = peer.url.rpartition(":")[2], health.url.rpartition(":")[2]
            everywhere = [{"grpc": f"all.invalid:{grpc_port}", "health": f"all.invalid:{health_port}"}]
            async with routing(peer.url, pools=dict.fromkeys(("text", "picture", "draw"), everywhere)) as router:
                assert [server.address for server in router.servers_of("text")] == [peer.url]

    asyncio.run(scenario())


def test_a_server_is_asked_only_for_what_the_deployment_has() -> None:
    async def scenario(peer: Peer) -> list[str]:
        deployment = in_front_of(peer.url, routing=QUICK).model_copy(update={"draw_checkpoint": None})
        assert deployment.gateway is not None
        router = Router(deployment, deployment.gateway)
        await router.start()
        try:
            return [one.pool for one in router.figures() if one.up]
        finally:
            await router.close()

    with peers() as (peer,):
        del peer.published["draw"]
        assert asyncio.run(scenario(peer)) == ["picture", "text"]


def test_the_light_model_has_servers_of_its_own() -> None:
    async def scenario() -> list[str]:
        with peers(2) as (full, light):
            deployment = in_front_of(full.url, routing=QUICK)
            assert deployment.gateway is not None
            settings = deployment.gateway.model_copy(update={"light": _light(light)})
            router = Router(deployment, settings)
            await router.start()
            visits = [visit() for _ in range(3)]
            try:
                for on, asked in zip(visits, (order(), order(light=True), drawing()), strict=True):
                    await answer(router, asked, on)
            finally:
                await router.close()
            return [{full.url: "full", light.url: "light"}[on.server] for on in visits]

    assert asyncio.run(scenario()) == ["full", "light", "full"]


def test_a_server_with_two_addresses_for_its_health_is_refused() -> None:
    one, other = ({"grpc": "a:1", "health": health} for health in ("a:2", "a:3"))
    with pytest.raises(ValidationError, match="a:1 has two addresses for its health"):
        GatewayPools.model_validate({"text": [one], "picture": [one], "draw": [other]})


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_of_a_name_with_both_kinds_of_address_those_of_ipv4_are_taken(host: str) -> None:
    assert asyncio.run(lookup.addresses(host)) == {"127.0.0.1"}


def test_of_a_name_with_ipv6_alone_those_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0))]
    monkeypatch.setattr(lookup.socket, "getaddrinfo", lambda *_, **__: found)
    assert asyncio.run(lookup.addresses("six.example")) == {"[::1]"}


def test_closing_cancels_what_is_open() -> None:
    async def scenario(peer: ScriptedPeer) -> None:
        async with routing(peer.url) as router:
            messages = router.messages(visit(), order("never end"))
            await anext(messages)
            reading = asyncio.create_task(anext(messages))
            await asyncio.sleep(0)
        with pytest.raises((asyncio.CancelledError, Unavailable)):
            await reading

    with peers() as (peer,):
        asyncio.run(scenario(peer))


def _routing(**changed: int) -> Any:
    deployment = in_front_of("127.0.0.1:1", routing={**QUICK, **changed})
    assert deployment.gateway is not None
    return deployment.gateway.routing


def _light(peer: Peer) -> Any:
    return LightModel(deployment="light.toml", servers=[ServerAddress(grpc=peer.url, health=None)])
