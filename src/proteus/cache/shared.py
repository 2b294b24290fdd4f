"""A Redis that several servers share: visual tokens that another server computed, or this one before it was restarted.

It only ever saves time. What it says is checked in full, what it does not say in time is computed, and what is written
is written behind the answer. A store that is lost is left alone for a while, and its return needs no restart.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError

from proteus.cache.breaker import Breaker
from proteus.cache.entry import Rows, entry_bytes, name_of, pack, unpack
from proteus.closing import close_in
from proteus.deployment import DeploymentError
from proteus.limits_cache import SharedStore

MAX_CONNECTIONS = 8
MAX_WRITES = 32  # that wait or are under way; what comes then is not written
MAX_ENTRY_BYTES = 64 << 20
ASIDE_BYTES = 1 << 20  # from here on an entry is sealed and checked in a thread
CLOSE_S = 2.0

Outcome = Literal["hit", "miss", "rejected", "lost", "left_alone", "written", "not_written"]
OUTCOMES: tuple[Outcome, ...] = ("hit", "miss", "rejected", "lost", "left_alone", "written", "not_written")
Result = TypeVar("Result")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedFigures:
    """Since the start."""

    outcomes: Mapping[Outcome, int]
    saved_s: float  # what computing the hits had taken


@dataclass(frozen=True, slots=True)
class Found:
    rows: Rows  # (N, D), read-only
    cost_s: float  # what computing it took
    age_s: float  # since it was made


class NoAnswer(Exception):
    """Of Redis to one question."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome)
        self.outcome = outcome


def secret_of(limits: SharedStore) -> bytes:
    """What entries are signed with, b"" for nothing; raises DeploymentError where its variable is not set."""
    return _variable(limits.secret_env, "secret_env").encode()


def _variable(name: str, key: str) -> str:
    if not name:
        return ""
    value = os.environ.get(name, "")
    if not value:
        raise DeploymentError(
            f"[encoder_cache.redis] {key} names {name}, which is not set", fix=f"set {name}, or remove {key}"
        )
    return value


class SharedCache:
    """For one event loop. Nothing here raises, and no question takes longer than `timeout_ms`."""

    def __init__(
        self,
        limits: SharedStore,
        *,
        clock_s: Callable[[], float] = time.monotonic,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._timeout_s, self._max_age_s = limits.timeout_ms / 1e3, limits.max_age_s
        self._secret, self._wall_s = secret_of(limits), wall_s
        self._client = _client(limits)
        self._breaker = Breaker(clock_s)
        self._outcomes: Counter[Outcome] = Counter()
        self._saved_s = 0.0
        self._writing: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def find(self, key: bytes, shape: tuple[int, int]) -> Found | None:
        """What is kept under a whole key; one byte more than its entry has is read at most."""
        if not self._breaker.may_try():
            self._outcomes["left_alone"] += 1
            return None
        num_bytes, name = entry_bytes(key, shape), name_of(key, self._secret)
        try:
            data = await self._answer(lambda: self._client.getrange(name, 0, num_bytes))
        except NoAnswer as failed:
            self._outcomes[failed.outcome] += 1
            return None
        if not data:
            self._outcomes["miss"] += 1
            return None
        entry = await _aside(num_bytes, lambda: unpack(data, key, shape, self._secret))
        age_s = 0.0 if entry is None else max(0.0, self._wall_s() - entry.made_s)
        if entry is None or age_s > self._max_age_s:
            self._outcomes["rejected"] += 1
            return None
        self._outcomes["hit"] += 1
        self._saved_s += entry.cost_s
        return Found(entry.rows, entry.cost_s, age_s)

    def keep(self, key: bytes, rows: Rows, cost_s: float) -> None:
        """Write it behind; the rows must not change any more."""
        num_bytes = entry_bytes(key, (len(rows), rows.shape[1]))
        if len(self._writing) >= MAX_WRITES or num_bytes > MAX_ENTRY_BYTES:
            self._outcomes["not_written"] += 1
            return
        task = asyncio.get_running_loop().create_task(self._write(key, rows, cost_s, num_bytes))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    def figures(self) -> SharedFigures:
        return SharedFigures(outcomes={name: self._outcomes[name] for name in OUTCOMES}, saved_s=self._saved_s)

    async def written(self) -> None:
        """Returns when all that was kept so far is written, or given up."""
        await asyncio.gather(*self._writing)

    async def aclose(self) -> None:
        """Give up what is not written, and close the connections."""
        for task in self._writing:
            task.cancel()
        await asyncio.gather(*self._writing, return_exceptions=True)
        await self._client.aclose()
        await self._client.connection_pool.disconnect()

    def close(self) -> None:
        """As `aclose`, from another thread than the loop's; where that has ended, so have the connections."""
        close_in(self._loop, self.aclose, CLOSE_S)

    async def _write(self, key: bytes, rows: Rows, cost_s: float, num_bytes: int) -> None:
        made_s = self._wall_s()
        if not self._breaker.may_try():
            self._outcomes["not_written"] += 1
            return
        entry = await _aside(num_bytes, lambda: pack(key, rows, cost_s, made_s, self._secret))
        name, age_ms = name_of(key, self._secret), int(self._max_age_s * 1e3)
        try:
            await self._answer(lambda: self._client.set(name, entry, px=age_ms))
        except NoAnswer:
            self._outcomes["not_written"] += 1
        else:
            self._outcomes["written"] += 1

    async def _answer(self, ask: Callable[[], Any]) -> Any:
        """What Redis says to one question; raises NoAnswer for an error, and where nothing comes in time."""
        self._loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout_s):
                said = await ask()
        except ResponseError as error:  # it is there, and will not do this
            self._note_back()
            raise NoAnswer("rejected") from error
        except Exception as error:  # whatever it is, the picture can be encoded
            if self._breaker.failed():
                log.warning("the shared encoder cache is lost, each picture is encoded here: %r", error)
            raise NoAnswer("lost") from error
        self._note_back()
        return said

    def _note_back(self) -> None:
        if self._breaker.worked():
            log.warning("the shared encoder cache is back")


def _client(limits: SharedStore) -> Redis:
    """No retries: who asks again is the next request."""
    password = _variable(limits.password_env, "password_env")
    given: dict[str, Any] = {"password": password} if password else {}
    pool = BlockingConnectionPool.from_url(
        limits.url,
        max_connections=MAX_CONNECTIONS,
        timeout=None,
        socket_timeout=None,  # of each question as a whole
        socket_connect_timeout=None,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
        **given,
    )
    pool.connection_kwargs["decode_responses"] = False  # whatever the URL says: entries are bytes
    return Redis.from_pool(pool)


async def _aside(num_bytes: int, work: Callable[[], Result]) -> Result:
    """In a thread where it would hold up the loop."""
    return await asyncio.to_thread(work) if num_bytes >= ASIDE_BYTES else work()
