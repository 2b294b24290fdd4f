"""Tenants by HTTP, in front of a peer: budgets, turns in a full room, and that all books end empty."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from proteus.cost.vector import ResourceVector
from proteus.deployment import Deployment
from proteus.gateway.tenancy.tenants_file import digest_of, new_key
from proteus.limits import Resources
from tests.client.peer import REPORT, SCRIPTS, Peer, event
from tests.gateway.running import DEMO, Running, in_front_of, started

ROOM = 4
TWO = "per_second = { requests = 0.001 }\nburst_s = 2000.0"  # requests, and then none for long
LIMITS = {"flood": "", "quiet": "", "rated": TWO, "leaver": TWO}
KEYS = {who: new_key() for who in LIMITS}
WITHIN_S = 30.0


@pytest.fixture(scope="module")
def small(peer: Peer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway whose one server admits few at once."""
    file = tmp_path_factory.mktemp("tenants") / "tenants.toml"
    file.write_text(
        "\n".join(
            f'[tenants.{who}]\nkeys = ["sha256:{digest_of(key.encode()).hex()}"]\n{LIMITS[who]}'
            for who, key in KEYS.items()
        )
    )
    demo = Deployment.load(DEMO)
    admission = demo.admission.model_copy(update={"capacity": Resources(requests=ROOM)})
    deployment = in_front_of(
        peer.url,
        deployment=demo.model_copy(update={"admission": admission}),
        tenants=str(file),  # type: ignore[arg-type]
        queue={"max_waiting": 20, "max_open_requests": 1000},
    )
    with started(deployment) as running:
        yield running


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Until it is set, the peer answers nothing to "wait"."""
    released = threading.Event()

    def wait(*_: Any) -> Iterator[Any]:
        released.wait(WITHIN_S)
        yield event("", (99,), REPORT)

    monkeypatch.setitem(SCRIPTS, "wait", wait)
    yield released
    released.set()


def client_of(running: Running, who: str) -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {KEYS[who]}"}
    limits = httpx.Limits(max_connections=200)
    return httpx.AsyncClient(base_url=running.url, headers=headers, timeout=60, limits=limits)


async def ask(client: httpx.AsyncClient, text: str) -> tuple[int, str]:
    body = {"model": "demo", "messages": [{"role": "user", "content": text}]}
    answer = await client.post("/v1/chat/completions", json=body)
    return answer.status_code, answer.json().get("error", {}).get("code", "")


async def comes_true(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not holds():
            await asyncio.sleep(0.01)


def is_empty(running: Running) -> bool:
    gateway = running.gateway
    snapshots = [room.snapshot() for room in gateway.shares.rooms.values()]
    return (
        gateway.seats.figures() == {"open_requests": 0, "open_bytes": 0}
        and all(gateway.budgets.held(who) == ResourceVector() for who in KEYS)
        and not any(any(one.held.values()) or any(one.queued.values()) for one in snapshots)
        and not any(gateway.shares.figures().values())
    )


def test_a_flood_that_waits_is_cut_short_and_the_quiet_tenant_goes_first(
    small: Running, release: threading.Event
) -> None:
    async def scenario() -> None:
        shares = small.gateway.shares
        async with client_of(small, "flood") as flood, client_of(small, "quiet") as quiet:
            stuck = [asyncio.create_task(ask(flood, "wait")) for _ in range(ROOM)]
            await comes_true(lambda: shares.rooms["text"].snapshot().held["requests"] == ROOM)
            waiting = [asyncio.create_task(ask(flood, "hello")) for _ in range(30)]
            await comes_true(lambda: shares.figures()["text"] == 20 and sum(task.done() for task in waiting) == 10)
            assert {task.result() for task in waiting if task.done()} == {(429, "queue_full")}
            mine = asyncio.create_task(ask(quiet, "hello"))
            await comes_true(lambda: sum(task.done() for task in waiting) == 11)
            stuck[0].cancel()
            assert await mine == (200, "")
            assert sum(task.done() for task in waiting) < 20
            release.set()
            assert await asyncio.gather(*stuck[1:]) == [(200, "")] * (ROOM - 1)
            assert sorted(set(await asyncio.gather(*waiting))) == [(200, ""), (429, "queue_full")]
        await comes_true(lambda: is_empty(small))

    asyncio.run(scenario())


def test_clients_that_leave_while_they_wait_leave_nothing(small: Running, release: threading.Event) -> None:
    async def scenario() -> None:
        async with client_of(small, "flood") as flood:
            tasks = [asyncio.create_task(ask(flood, "wait")) for _ in range(ROOM + 10)]
            await comes_true(lambda: small.gateway.shares.figures()["text"] == 10)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await comes_true(lambda: is_empty(small))

    asyncio.run(scenario())


def test_whoever_comes_when_no_server_is_up_is_told_at_once_though_the_room_is_full(
    small: Running, peer: Peer, release: threading.Event
) -> None:
    async def scenario() -> None:
        router = small.gateway.router
        async with client_of(small, "flood") as flood, client_of(small, "quiet") as quiet:
            stuck = [asyncio.create_task(ask(flood, "wait")) for _ in range(ROOM)]
            await comes_true(lambda: small.gateway.shares.rooms["text"].snapshot().held["requests"] == ROOM)
            peer.ready = False
            await comes_true(lambda: not router.ready("text"))
            told = asyncio.create_task(ask(quiet, "hello"))
            await comes_true(lambda: told.done() or small.gateway.shares.figures()["text"] > 0)
            peer.ready = True
            assert told.done(), "it does not wait"
            assert await told == (503, "unavailable")
            release.set()
            assert await asyncio.gather(*stuck) == [(200, "")] * ROOM
            await comes_true(lambda: router.ready("text"))
        await comes_true(lambda: is_empty(small))

    asyncio.run(scenario())


def test_what_no_server_did_is_not_charged(small: Running) -> None:
    """Two requests are all that this tenant has."""

    async def scenario() -> list[tuple[int, str]]:
        async with client_of(small, "rated") as rated:
            return [await ask(rated, "refuse") for _ in range(5)]

    assert set(asyncio.run(scenario())) == {(429, "queue_full")}


def test_who_leaves_before_a_server_has_it_has_used_nothing_and_after_that_all(
    small: Running, release: threading.Event
) -> None:
    gateway = small.gateway
    leaver = gateway.tenants.of(f"Bearer {KEYS['leaver']}".encode())

    def affords(requests: int) -> bool:
        return gateway.budgets.affords(leaver, ResourceVector(requests=requests))

    def held() -> int:
        return gateway.shares.rooms["text"].snapshot().held["requests"]

    async def leaves(client: httpx.AsyncClient, once: Callable[[], bool]) -> None:
        task = asyncio.create_task(ask(client, "wait"))
        await comes_true(once)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await comes_true(lambda: gateway.budgets.held("leaver") == ResourceVector())

    async def scenario() -> None:
        async with client_of(small, "flood") as flood, client_of(small, "leaver") as client:
            stuck = [asyncio.create_task(ask(flood, "wait")) for _ in range(ROOM)]
            await comes_true(lambda: held() == ROOM)
            await leaves(client, lambda: gateway.shares.figures()["text"] == 1)
            await comes_true(lambda: affords(2))
            release.set()
            await asyncio.gather(*stuck)
            release.clear()
            await leaves(client, lambda: held() == 1)
            await comes_true(lambda: gateway.visits.open == 0)
            assert affords(1) and not affords(2)
        await comes_true(lambda: is_empty(small))

    asyncio.run(scenario())


def test_a_budget_that_is_used_up_says_so(small: Running) -> None:
    async def scenario() -> list[tuple[int, str]]:
        async with client_of(small, "rated") as rated:
            return [await ask(rated, "hello") for _ in range(3)]

    assert asyncio.run(scenario()) == [(200, ""), (200, ""), (429, "over_budget")]
    assert small.gateway.budgets.figures()["rated", "requests"] == 1


@pytest.mark.parametrize(
    "headers", [{}, {"authorization": "Bearer pk-wrong"}, {"authorization": f"Bearer {new_key()}"}]
)
def test_without_a_known_key_the_way_to_give_one_is_told(headers: dict[str, str], small: Running) -> None:
    answer = httpx.post(f"{small.url}/v1/chat/completions", content=b"{}", headers=headers)
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert (answer.json()["error"]["code"], answer.json()["error"]["type"]) == (
        "invalid_api_key",
        "authentication_error",
    )


def test_the_refusal_says_when_to_come_back(small: Running) -> None:
    headers: dict[str, Any] = {"authorization": f"Bearer {KEYS['rated']}"}
    body = {"model": "demo", "messages": [{"role": "user", "content": "hello"}]}
    answer = httpx.post(f"{small.url}/v1/chat/completions", json=body, headers=headers)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "60")
