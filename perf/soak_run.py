"""Clients that come and go, processes that are killed meanwhile, and what became of every request."""

from __future__ import annotations

import asyncio
import math
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from perf.soak_kinds import CROWD, PATIENCE_S, Kind, Tally, Unexpected, Visit, deck
from perf.soak_pictures import Stock
from perf.soak_processes import hottest_worker
from proteus.client import AsyncClient, ClientError, ConnectionFailed, ServerError
from proteus.errors import ProteusError
from proteus.families.family import PlanRefused
from proteus.launcher import Server

CLIENTS = 16
BASELINE_AT = 500
CROWD_SIZE = 96
CROWD_EVERY = 2_000
HANG_S = PATIENCE_S + 30  # the client's own timeout should have ended it
RECOVERY_S = 60.0
RECONNECT_S = 3.0  # a client that met the dead server tries again within a second
WORKER_GONE_S = 3.0
GONE = "connection lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What happens when, by the number of a request."""

    requests: int
    baseline_at: int
    stub_dies_at: int
    workers_die_at: tuple[int, ...]
    crowds_at: tuple[int, ...]

    @classmethod
    def of(cls, requests: int) -> Course:
        """The baseline is of processes that serve all that follows, so the stub dies before it."""
        baseline = min(BASELINE_AT, requests * 3 // 5)
        stub = max(baseline // 4, baseline - 300)
        crowd = stub + 10
        return cls(
            requests=requests,
            baseline_at=baseline,
            stub_dies_at=stub,
            workers_die_at=(baseline * 4 // 5, (baseline + requests) // 2),
            crowds_at=(crowd, *range(crowd + CROWD_EVERY, requests - CROWD_SIZE, CROWD_EVERY)),
        )

    def visits(self, begin: int, end: int) -> Iterator[tuple[int, Kind]]:
        """Number and kind of each request but those of crowds, which the first of them brings along."""
        number = begin
        while number < end:
            if number in self.crowds_at:
                yield number, CROWD
                number += CROWD_SIZE
            else:
                yield number, deck(number // 100)[number % 100]
                number += 1


@dataclass(slots=True)
class Troubles:
    """Times of kills, in which requests may fail that would not otherwise."""

    _spans: list[list[float]] = field(default_factory=list)

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        span = [time.monotonic(), math.inf]
        self._spans.append(span)
        try:
            yield
        finally:
            span[1] = time.monotonic()

    def touch(self, begun_s: float, ended_s: float) -> bool:
        return any(begun_s <= end_s and begin_s <= ended_s for begin_s, end_s in self._spans)


def known_codes() -> frozenset[str]:
    """Of every error that the server may answer with."""

    def codes(kind: type[ProteusError]) -> Iterator[str]:
        yield kind.code
        for below in kind.__subclasses__():
            yield from codes(below)

    return frozenset(codes(ProteusError)) | {PlanRefused.code}


class Soak:
    """One server, its clients, and the tally of what they saw."""

    def __init__(self, server: Server, course: Course, stock: Stock, *, stub: str, done: Callable[[], None]) -> None:
        self.tally = Tally()
        self._server, self._course, self._stock, self._stub, self._done = server, course, stock, stub, done
        self._known = known_codes()
        self.troubles = Troubles()
        self._healthy = asyncio.Event()
        self._healthy.set()
        self._kills: set[asyncio.Task[None]] = set()
        self._left_to_kill = [
            (course.stub_dies_at, self._kill_stub),
            *((number, self._kill_worker) for number in course.workers_die_at),
        ]

    @property
    def healthy(self) -> bool:
        """No stub of its is dead."""
        return self._healthy.is_set()

    async def run(self, begin: int, end: int) -> None:
        """These requests, each of which has ended when this returns."""
        visits = self._course.visits(begin, end)
        async with AsyncExitStack() as open_clients:
            clients = [
                await open_clients.enter_async_context(AsyncClient(self._server.ports.grpc_url)) for _ in range(CLIENTS)
            ]
            await asyncio.gather(*(self._visitor(client, visits) for client in clients))
        await asyncio.gather(*self._kills)

    async def _visitor(self, client: AsyncClient, visits: Iterator[tuple[int, Kind]]) -> None:
        for number, kind in visits:
            await self._healthy.wait()
            self._kill_at(number)
            if kind is CROWD:
                await asyncio.gather(*(self.visit(client, number + one, kind) for one in range(CROWD_SIZE)))
            else:
                await self.visit(client, number, kind)

    async def visit(self, client: AsyncClient, number: int, kind: Kind) -> None:
        visit = Visit(client=client, stock=self._stock, chance=random.Random(number), tally=self.tally, number=number)
        begun_s = time.monotonic()
        try:
            async with asyncio.timeout(HANG_S):
                outcome = await kind.act(visit)
        except ServerError as error:
            outcome = error.code
            self._judge_error(visit, kind, error, begun_s)
        except (ClientError, TimeoutError) as error:
            outcome = GONE if isinstance(error, ConnectionFailed) else "hung"
            self._judge_break(visit, kind, error, begun_s)
        except Unexpected as error:
            outcome = "unexpected"
            self._unexpected(visit, kind, str(error), begun_s)
        else:
            if outcome not in kind.outcomes:
                self._unexpected(visit, kind, outcome, begun_s)
        self.tally.outcomes[kind.name, outcome] += 1
        self._done()

    def _judge_error(self, visit: Visit, kind: Kind, error: ServerError, begun_s: float) -> None:
        if error.code in kind.outcomes or self.troubles.touch(begun_s, time.monotonic()):
            return
        if error.code in self._known:
            self.tally.unexpected.append(f"{visit.number} {kind.name}: {error}")
        else:
            self.tally.lost.append(f"{visit.number} {kind.name}: {error}")

    def _judge_break(self, visit: Visit, kind: Kind, error: Exception, begun_s: float) -> None:
        """A broken connection is an error in the seconds around a kill, and else a loss; a hang is always one."""
        if not isinstance(error, ConnectionFailed) or not self.troubles.touch(begun_s, time.monotonic()):
            self.tally.lost.append(f"{visit.number} {kind.name}: {type(error).__name__} {error}")

    def _unexpected(self, visit: Visit, kind: Kind, outcome: str, begun_s: float) -> None:
        if not self.troubles.touch(begun_s, time.monotonic()):
            self.tally.unexpected.append(f"{visit.number} {kind.name}: {outcome}")

    def _kill_at(self, number: int) -> None:
        """The first request at or after the number kills: that very number may have been in a crowd."""
        if self._left_to_kill and self._left_to_kill[0][0] <= number:
            _, kill = self._left_to_kill.pop(0)
            self._kills.add(asyncio.create_task(kill()))

    async def _kill_stub(self) -> None:
        async with self.troubles.one():
            self._healthy.clear()
            restarts = self._server.restarts
            os.kill(self._server.stub_pids()[self._stub][0], signal.SIGKILL)
            await asyncio.to_thread(self._server.wait_until_ready, RECOVERY_S, restarts=restarts + 1)
            await asyncio.sleep(RECONNECT_S)
            self._healthy.set()

    async def _kill_worker(self) -> None:
        async with self.troubles.one():
            os.kill(hottest_worker(self._server), signal.SIGKILL)
            await asyncio.sleep(WORKER_GONE_S)
