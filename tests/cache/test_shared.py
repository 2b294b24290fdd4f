"""A real Redis that is killed, held still, full of garbage or locked: what it says is right, or nothing, and soon."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Iterator
from typing import Any

import numpy as np
import pytest

from proteus.cache.entry import Rows, name_of, pack
from proteus.cache.shared import MAX_WRITES, SharedCache, secret_of
from proteus.deployment import DeploymentError
from proteus.limits_cache import SharedStore
from tests.redis_server import RedisServer

KEY, SHAPE = b"the whole key", (36, 8)
ROWS: Rows = np.random.default_rng(0).random(SHAPE, dtype=np.float32)
MADE_S = time.time()
PATIENT_MS = 10_000  # for what must be answered, on however busy a machine


class Clock:
    """Of the breaker alone."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(scope="module")
def started() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def redis(started: RedisServer) -> RedisServer:
    """Empty."""
    with started.client() as client:
        client.flushall()
    return started


def limits(redis: RedisServer, **changes: Any) -> SharedStore:
    return SharedStore.model_validate(
        {"url": redis.url, "timeout_ms": PATIENT_MS, "max_age_s": 60.0, "secret_env": ""} | changes
    )


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 60))


async def kept(shared: SharedCache, key: bytes = KEY, rows: Rows = ROWS) -> None:
    shared.keep(key, rows, 0.25)
    await shared.written()


async def finds(shared: SharedCache, key: bytes = KEY) -> bool:
    """Whether there is an entry, which is the right one."""
    entry = await shared.find(key, SHAPE)
    if entry is None:
        return False
    assert (entry.rows.tobytes(), entry.cost_s) == (ROWS.tobytes(), 0.25)
    return True


def outcomes(shared: SharedCache) -> dict[str, int]:
    """Those that there were."""
    return {str(name): number for name, number in shared.figures().outcomes.items() if number}


def test_what_one_server_writes_another_finds_until_it_is_too_old(redis: RedisServer) -> None:
    async def scenario() -> None:
        one, other = SharedCache(limits(redis)), SharedCache(limits(redis))
        assert not await finds(other)
        await kept(one)
        assert await finds(other)
        with redis.client() as client:
            (left_ms,) = (client.pttl(name) for name in client.scan_iter())
        assert 0 < left_ms <= 60_000
        assert (outcomes(one), outcomes(other)) == ({"written": 1}, {"miss": 1, "hit": 1})
        assert other.figures().saved_s == 0.25
        await one.aclose()
        await other.aclose()

    run(scenario())


def test_an_entry_counts_from_its_making_whatever_redis_says_of_its_age(redis: RedisServer) -> None:
    async def scenario() -> None:
        now = Clock()
        now.now_s = MADE_S
        one, other = (SharedCache(limits(redis, max_age_s=3600.0), wall_s=now) for _ in range(2))
        await kept(one)
        ages: list[float | None] = []
        for after_s in (0.0, 3600.0, 3600.5, -5.0):  # the last by a clock that is behind
            now.now_s = MADE_S + after_s
            found = await other.find(KEY, SHAPE)
            ages.append(None if found is None else found.age_s)
        assert ages == [0.0, 3600.0, None, 0.0]
        assert outcomes(other) == {"hit": 3, "rejected": 1}
        await one.aclose()
        await other.aclose()

    run(scenario())


@pytest.mark.parametrize("option", ["decode_responses=true", "socket_timeout=1", "protocol=3", "unknown=1"])
def test_options_of_the_url_never_make_a_question_fail(redis: RedisServer, option: str) -> None:
    async def scenario() -> None:
        plain = SharedCache(limits(redis))
        shared = SharedCache(limits(redis, url=f"{redis.url}?{option}"))
        await kept(plain)
        assert await finds(shared) is (option != "unknown=1")
        await plain.aclose()
        await shared.aclose()

    run(scenario())


def test_a_large_entry_is_written_and_found_too(redis: RedisServer) -> None:
    """As large as of models in earnest: sealed and checked in a thread."""

    async def scenario() -> None:
        shared = SharedCache(limits(redis))
        rows = np.ones((576, 4096), dtype=np.float32)
        await kept(shared, rows=rows)
        entry = await shared.find(KEY, (576, 4096))
        assert entry is not None
        assert np.array_equal(entry.rows, rows)
        await shared.aclose()

    run(scenario())


def test_no_more_is_read_than_an_entry_has(redis: RedisServer) -> None:
    async def scenario() -> None:
        shared = SharedCache(limits(redis))
        with redis.client() as client:
            client.set(name_of(KEY, b""), pack(KEY, ROWS, 0.25, MADE_S, b"") + bytes(1 << 26))
        begun_bytes = read_bytes(redis)
        assert not await finds(shared)
        assert read_bytes(redis) - begun_bytes < 1 << 16
        assert outcomes(shared) == {"rejected": 1}
        await shared.aclose()

    run(scenario())


def read_bytes(redis: RedisServer) -> int:
    """What Redis has sent so far."""
    with redis.client() as client:
        return int(client.info("stats")["total_net_output_bytes"])


@pytest.mark.parametrize(
    "data",
    [
        b"garbage",
        b"\x80\x04\x95cposix\nsystem\n",  # a pickle, which nobody reads
        pack(KEY, ROWS, 0.25, MADE_S, b"")[:-1],
        pack(b"another key..", ROWS, 0.25, MADE_S, b""),
        pack(KEY, ROWS * np.float32("nan"), 0.25, MADE_S, b""),
        pack(KEY, ROWS[:, :4], 0.25, MADE_S, b""),
        bytes(len(pack(KEY, ROWS, 0.25, MADE_S, b""))),
    ],
)
def test_what_is_no_entry_of_the_key_is_never_used_and_is_replaced(redis: RedisServer, data: bytes) -> None:
    async def scenario() -> None:
        shared = SharedCache(limits(redis))
        with redis.client() as client:
            client.set(name_of(KEY, b""), data)
        assert not await finds(shared)
        await kept(shared)
        assert await finds(shared)
        assert outcomes(shared) == {"rejected": 1, "written": 1, "hit": 1}
        await shared.aclose()

    run(scenario())


def test_another_kind_of_value_is_refused_by_redis_and_does_no_harm(redis: RedisServer) -> None:
    async def scenario() -> None:
        shared = SharedCache(limits(redis))
        with redis.client() as client:
            client.rpush(name_of(KEY, b""), "a", "b")
        assert not await finds(shared)
        assert not await finds(shared, b"another key")
        assert outcomes(shared) == {"rejected": 1, "miss": 1}
        await shared.aclose()

    run(scenario())


def test_servers_with_other_secrets_share_nothing(redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        servers = []
        for name, secret in (("ONE", "a secret"), ("OTHER", "another"), ("SAME", "a secret"), ("", "")):
            monkeypatch.setenv(name or "NONE", secret)
            servers.append(SharedCache(limits(redis, secret_env=name)))
        one, other, same, unsigned = servers
        await kept(one)
        assert [await finds(server) for server in (other, unsigned, same)] == [False, False, True]
        (written,) = redis.entries().values()
        with redis.client() as client:  # who writes it under their names without their secret
            for secret in (b"another", b""):
                client.set(name_of(KEY, secret), written)
        assert [await finds(server) for server in (other, unsigned)] == [False, False]
        assert (outcomes(other), outcomes(unsigned)) == ({"miss": 1, "rejected": 1}, {"miss": 1, "rejected": 1})
        for server in servers:
            await server.aclose()

    run(scenario())


def test_a_secret_or_a_password_that_is_not_set_stops_the_start(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMPTY", "")
    for key in ("secret_env", "password_env"):
        with pytest.raises(DeploymentError, match=rf"{key} names EMPTY, which is not set; fix: set EMPTY"):
            SharedCache(limits(redis, **{key: "EMPTY"}))
    assert secret_of(limits(redis)) == b""


@pytest.mark.parametrize(("password", "outcome"), [("right", "miss"), ("wrong", "lost")])
def test_the_password_comes_from_the_environment(password: str, outcome: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_PASSWORD", password)

    async def scenario(redis: RedisServer) -> None:
        shared = SharedCache(limits(redis, password_env="REDIS_PASSWORD"))
        assert not await finds(shared)
        assert outcomes(shared) == {outcome: 1}
        await shared.aclose()

    with RedisServer("--requirepass", "right") as locked:
        run(scenario(locked))


def test_a_redis_that_is_full_is_read_all_the_same() -> None:
    async def scenario(redis: RedisServer) -> None:
        shared = SharedCache(limits(redis))
        await kept(shared)
        with redis.client() as client:
            client.config_set("maxmemory", "1")
        await kept(shared, b"another key")
        assert await finds(shared)
        assert outcomes(shared) == {"written": 1, "not_written": 1, "hit": 1}
        await shared.aclose()

    with RedisServer("--maxmemory-policy", "noeviction") as small:
        run(scenario(small))


def test_a_killed_redis_is_left_alone_for_a_while_and_is_used_again_when_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(redis: RedisServer) -> None:
        clock = Clock()
        shared = SharedCache(limits(redis), clock_s=clock)
        await kept(shared)
        redis.kill()
        assert [await finds(shared) for _ in range(3)] == [False] * 3
        await kept(shared)
        assert outcomes(shared) == {"written": 1, "lost": 1, "left_alone": 2, "not_written": 1}
        clock.now_s = 1.0
        assert not await finds(shared), "still gone"
        redis.start()
        clock.now_s = 2.0
        assert not await finds(shared), "left alone for two seconds now"
        clock.now_s = 3.0
        assert not await finds(shared), "a miss: Redis keeps nothing"
        await kept(shared)
        assert await finds(shared)
        await shared.aclose()

    with RedisServer() as mortal:
        run(scenario(mortal))
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(told) == 2
    assert "is lost" in told[0]
    assert "is back" in told[1]


def test_a_redis_that_hangs_costs_one_timeout_and_no_answer_comes_late_to_another_question() -> None:
    async def scenario(redis: RedisServer) -> None:
        clock = Clock()
        shared = SharedCache(limits(redis, timeout_ms=200), clock_s=clock)
        while not await finds(shared):  # however slow the machine is
            clock.now_s += 100.0
            await kept(shared)
        redis.hold()
        try:
            begun_s = time.monotonic()
            assert not await finds(shared)
            assert 0.2 <= time.monotonic() - begun_s < 5.0, "the timeout, and not that of a socket"
            before = outcomes(shared)
            assert [await finds(shared) for _ in range(100)] == [False] * 100
            assert outcomes(shared)["left_alone"] == before.get("left_alone", 0) + 100
        finally:
            redis.let_go()
        for number in range(3):
            clock.now_s += 100.0
            assert not await finds(shared, b"unknown %d" % number)
        while not await finds(shared):
            clock.now_s += 100.0
        await shared.aclose()

    with RedisServer() as hanging:
        run(scenario(hanging))


def test_writes_behind_are_bounded_and_closing_gives_them_up(redis: RedisServer) -> None:
    async def scenario() -> None:
        shared = SharedCache(limits(redis))
        for number in range(MAX_WRITES + 5):
            shared.keep(b"key %d" % number, ROWS, 0.25)
        assert outcomes(shared) == {"not_written": 5}
        await shared.aclose()
        shared = SharedCache(limits(redis))
        for number in range(MAX_WRITES):
            shared.keep(b"key %d" % number, ROWS, 0.25)
        await shared.written()
        assert outcomes(shared) == {"written": MAX_WRITES}
        await shared.aclose()

    run(scenario())


def test_it_can_be_closed_from_another_thread_and_before_it_was_ever_asked(redis: RedisServer) -> None:
    async def scenario() -> None:
        shared = SharedCache(limits(redis))
        shared.close()
        await kept(shared)
        await asyncio.to_thread(shared.close)
        with redis.client() as client:
            assert len(client.client_list()) == 1, "that of the test"

    run(scenario())


def test_a_request_that_is_given_up_harms_no_later_one(redis: RedisServer) -> None:
    async def scenario() -> None:
        shared = SharedCache(limits(redis))
        await kept(shared)
        for delay_s in np.linspace(0, 0.003, 60):
            task = asyncio.create_task(finds(shared))
            await asyncio.sleep(delay_s)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert not await finds(shared, b"another key..")
        assert await finds(shared)
        await shared.aclose()

    run(scenario())
