"""Who is sent to a server next, where many want to be: never over the room, fair by tenant, nobody left behind."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proteus.admission import gate
from proteus.cost.vector import ResourceVector
from proteus.deployment import Deployment
from proteus.errors import DeadlineExceeded, MediaTooLarge, QueueFull
from proteus.gateway.order import Order, Tenant, Visit
from proteus.gateway.tenancy.shares import Admissions, Shares, without_pictures
from proteus.limits import ClassQueue, DrawAdmission, DrawQueues, LatencyClass, Resources
from proteus.limits_gateway import Gateway as Settings
from proteus.limits_gateway import PoolName
from tests.admission.asks import limits_of
from tests.admission.virtual_loop import run, settle

DEMO = Deployment.load(Path(__file__).parents[2] / "deployments" / "demo.toml")
CAPACITY = Resources(requests=4, decoded_pixels=100)
DRAW = DrawAdmission(
    capacity=Resources(requests=2),
    request=Resources(),
    queues=DrawQueues(media=ClassQueue(max_queue=1, weight=4), batch=ClassQueue(max_queue=1, weight=1)),
    max_open_bytes=1,
    max_wait_ms=1,
)
ADMISSIONS: Admissions = {"text": limits_of(CAPACITY), "picture": limits_of(CAPACITY), "draw": DRAW}


class Servers:
    def __init__(self, number: int = 1) -> None:
        self.number = number

    def __call__(self, pool: str) -> int:
        return self.number


def settings_of(**changed: Any) -> Settings:
    assert DEMO.gateway is not None
    document = DEMO.gateway.model_dump()
    for name, values in changed.items():
        document[name] |= values
    return Settings.model_validate(document)


class Hall:
    """Shares of the demo's pools, and what went through them in order."""

    def __init__(self, servers: Servers | None = None, **queue: int) -> None:
        self.servers = servers or Servers()
        self.shares = Shares(settings_of(queue=queue), ADMISSIONS, self.servers)
        self.begun: list[str] = []  # tenants
        self.inside: list[ResourceVector] = []
        self.peak: Counter[str] = Counter()

    async def one(
        self,
        tenant: str = "ann",
        *,
        pool: PoolName = "text",
        weight: int = 1,
        latency_class: LatencyClass = "text",
        deadline_s: float | None = None,
        held_s: float = 1.0,
        ends: Callable[[], Awaitable[None]] | None = None,
        **amounts: int,
    ) -> None:
        visit = Visit(path="/", address="")
        order = order_of(visit, tenant, pool, weight, latency_class, deadline_s, amounts or {"requests": 1})
        async with self.shares.turn(visit, order):
            self.begun.append(tenant)
            self.inside.append(order.resources)
            for name, value in sum(self.inside, ResourceVector()).named():
                self.peak[name] = max(self.peak[name], value)
            try:
                await (asyncio.sleep(held_s) if ends is None else ends())
            finally:
                self.inside.remove(order.resources)

    def check_empty(self) -> None:
        assert not any(self.shares.figures().values())
        for room in self.shares.rooms.values():
            snapshot = room.snapshot()
            assert not any(snapshot.held.values()) and not any(snapshot.queued.values())


def order_of(
    visit: Visit,
    tenant: str,
    pool: PoolName,
    weight: int,
    latency_class: LatencyClass,
    deadline_s: float | None,
    amounts: dict[str, int],
) -> Order:
    return Order(
        message=None,
        door="draw" if pool == "draw" else "chat",
        model="demo",
        pool=pool,
        tenant=Tenant(name=tenant, cache_scope=tenant, weight=weight),
        request_id=visit.request_id,
        latency_class=latency_class,
        resources=ResourceVector(**amounts),
        price=0.0,
        deadline_s=deadline_s,
    )


@pytest.fixture(autouse=True)
def loop_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate's clock is that of the loop, which jumps."""
    monkeypatch.setattr(gate.Gate.__init__, "__kwdefaults__", {"clock_s": now_s, "keys": None})


def now_s() -> float:
    return asyncio.get_running_loop().time()


def test_a_tenant_with_a_thousand_waiting_does_not_delay_one_with_a_single_request() -> None:
    async def scenario() -> None:
        hall = Hall(max_waiting=2000, max_wait_ms=10_000_000)
        flood = [asyncio.create_task(hall.one("flood")) for _ in range(1000)]
        await asyncio.sleep(5.5)
        assert hall.shares.figures()["text"] > 900
        await hall.one("quiet")
        assert hall.begun.index("quiet") <= 4 * 7
        for task in flood:
            task.cancel()
        await asyncio.gather(*flood, return_exceptions=True)
        hall.check_empty()

    run(scenario())


def test_a_full_queue_sends_away_the_newest_of_the_tenant_that_waits_with_most() -> None:
    async def scenario() -> None:
        hall = Hall(max_waiting=10)
        flood = [asyncio.create_task(hall.one("flood")) for _ in range(14)]
        await settle()
        quiet = asyncio.create_task(hall.one("quiet"))
        await settle()
        assert [task.done() for task in flood] == [False] * 13 + [True]
        with pytest.raises(QueueFull, match=r"limit: \[gateway.queue\] max_waiting = 10; fix: try again in"):
            await flood[-1]
        await asyncio.gather(quiet, *flood[:-1])
        hall.check_empty()

    run(scenario())


def test_who_waits_too_long_is_told_which_limit() -> None:
    async def scenario() -> None:
        hall = Hall(max_wait_ms=2000)
        held = [asyncio.create_task(hall.one(held_s=60)) for _ in range(4)]
        await settle()
        with pytest.raises(DeadlineExceeded, match=r"\[gateway.queue\] max_wait_ms = 2,000"):
            await hall.one()
        with pytest.raises(DeadlineExceeded, match="the request's deadline"):
            await hall.one(deadline_s=now_s() + 1)
        await asyncio.gather(*held)
        hall.check_empty()

    run(scenario())


def test_what_no_server_takes_is_refused_although_several_together_would() -> None:
    async def scenario() -> None:
        hall = Hall(Servers(3))
        with pytest.raises(MediaTooLarge, match=r"\[admission.capacity\] decoded_pixels = 100"):
            await hall.one(pool="picture", requests=1, decoded_pixels=101)
        hall.check_empty()

    run(scenario())


def test_text_and_pictures_of_one_server_share_its_room_and_drawings_have_their_own() -> None:
    async def scenario() -> None:
        hall = Hall()
        assert hall.shares.rooms["text"] is hall.shares.rooms["picture"] is not hall.shares.rooms["draw"]
        held = [asyncio.create_task(hall.one(held_s=9)) for _ in range(4)]
        await settle()
        picture = asyncio.create_task(hall.one(pool="picture", latency_class="media"))
        drawing = asyncio.create_task(hall.one(pool="draw", latency_class="media"))
        await settle()
        assert hall.shares.figures() == {"text": 0, "picture": 1, "draw": 0}
        await asyncio.gather(*held, picture, drawing)
        hall.check_empty()

    run(scenario())


def test_pools_of_other_servers_have_rooms_of_their_own() -> None:
    pools = {"text": [{"grpc": "a:1"}], "picture": [{"grpc": "b:1"}]}
    shares = Shares(settings_of(pools=pools), ADMISSIONS, Servers())
    assert shares.rooms["text"] is not shares.rooms["picture"]


def test_a_server_that_comes_back_has_room_for_those_who_wait() -> None:
    async def scenario() -> None:
        hall = Hall(Servers(0))
        await hall.shares.start()
        tasks = [asyncio.create_task(hall.one(held_s=10)) for _ in range(8)]
        await asyncio.sleep(1)
        assert len(hall.begun) == 4
        hall.servers.number = 2
        await asyncio.sleep(1)
        assert len(hall.begun) == 8
        await asyncio.gather(*tasks)
        await hall.shares.close()
        hall.check_empty()

    run(scenario())


def test_pixels_are_free_again_once_a_server_has_begun_to_answer() -> None:
    async def scenario() -> None:
        hall = Hall()
        visit = Visit(path="/", address="")
        amounts = {"requests": 1, "decoded_pixels": 80, "media_bytes": 9}
        order = order_of(visit, "ann", "picture", 1, "media", None, amounts)
        async with hall.shares.turn(visit, order) as reservation:
            second = asyncio.create_task(hall.one("bob", pool="picture", decoded_pixels=80))
            await settle()
            assert hall.begun == []
            without_pictures(reservation)
            without_pictures(reservation)
            await settle()
            assert hall.begun == ["bob"]
        await second
        hall.check_empty()

    run(scenario())


@pytest.mark.parametrize("weights", [{"a": 1, "b": 1}, {"a": 3, "b": 1}, {"a": 5, "b": 2, "c": 1}])
def test_shares_are_as_the_weights_to_within_a_request(weights: dict[str, int]) -> None:
    async def scenario() -> None:
        hall = Hall(max_wait_ms=10_000_000)
        held = [asyncio.create_task(hall.one("first")) for _ in range(4)]
        await settle()
        tasks = [
            asyncio.create_task(hall.one(tenant, weight=weight))
            for tenant, weight in weights.items()
            for _ in range(40)
        ]
        await asyncio.gather(*held, *tasks)
        number = 3 * sum(weights.values())
        counted = Counter(hall.begun[4 : 4 + number])
        assert all(abs(counted[tenant] - 3 * weight) <= 1 for tenant, weight in weights.items())
        hall.check_empty()

    run(scenario())


@pytest.mark.parametrize("kind", ["cancelled", "failed"])
def test_however_a_request_ends_nothing_is_left(kind: str) -> None:
    async def scenario() -> None:
        hall = Hall()
        never = asyncio.Event()

        async def fails() -> None:
            await asyncio.sleep(1)
            raise OSError("the server is gone")

        ends = never.wait if kind == "cancelled" else fails
        tasks = [asyncio.create_task(hall.one(ends=ends)) for _ in range(9)]  # type: ignore[arg-type]
        await settle()
        if kind == "cancelled":
            for task in tasks[::-1]:
                await settle()
                task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        wanted = asyncio.CancelledError if kind == "cancelled" else OSError
        assert all(isinstance(result, wanted) for result in results)
        hall.check_empty()

    run(scenario())


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ann", "bob", "cid"]),
        st.sampled_from(["text", "media", "batch"]),
        st.integers(1, 4),  # weight
        st.integers(0, 4),  # requests
        st.integers(0, 100),  # pixels
        st.sampled_from([0.0, 0.5, 3.0]),  # until the next one comes
        st.sampled_from([0.1, 2.0]),  # held
        st.booleans(),  # leaves early
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(STEPS, st.integers(1, 3))
def test_whatever_comes_the_room_is_kept_everybody_gets_in_and_nothing_is_left(
    steps: list[tuple[str, LatencyClass, int, int, int, float, float, bool]], num_servers: int
) -> None:
    async def scenario() -> None:
        hall = Hall(Servers(num_servers), max_wait_ms=10_000_000)
        tasks, leaving = [], []
        for tenant, latency_class, weight, requests, pixels, gap_s, held_s, leaves in steps:
            asked = hall.one(
                tenant,
                weight=weight,
                latency_class=latency_class,
                held_s=held_s,
                requests=requests,
                decoded_pixels=pixels,
            )
            (leaving if leaves else tasks).append(asyncio.create_task(asked))
            await asyncio.sleep(gap_s)
        for task in leaving:
            task.cancel()
        await asyncio.gather(*leaving, return_exceptions=True)
        await asyncio.gather(*tasks)
        assert all(hall.peak[name] <= limit * num_servers for name, limit in CAPACITY.named())
        hall.check_empty()

    run(scenario())
