from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from proteus.admission.ask import Ask
from proteus.admission.gate import Gate
from proteus.admission.ledger import Ledger, Reservation
from proteus.cost.vector import ResourceVector
from proteus.errors import DeadlineExceeded, MediaTooLarge, QueueFull
from proteus.limits import AdmissionLimits, Resources
from tests.admission.asks import ask_of, limits_of
from tests.admission.virtual_loop import run, settle

ONE_AT_A_TIME = limits_of(Resources(requests=1), max_queue=2, max_wait_ms=5000)
ASK = ask_of(requests=1)


def gate_of(limits: AdmissionLimits = ONE_AT_A_TIME) -> Gate:
    return Gate(limits, clock_s=asyncio.get_running_loop().time)


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def hold(gate: Gate, until: asyncio.Event, ask: Ask = ASK) -> float:
    """Holds its reservation until told; the time it was admitted."""
    async with gate.admitted(ask):
        started_s = now_s()
        await until.wait()
    return started_s


def nothing_is_left(gate: Gate) -> bool:
    snapshot = gate.snapshot()
    return not any(snapshot.held.values()) and not any(snapshot.queued.values())


def test_requests_take_turns() -> None:
    async def scenario() -> None:
        gate, ends = gate_of(), [asyncio.Event() for _ in range(3)]
        tasks = [asyncio.create_task(hold(gate, end)) for end in ends]
        for end in ends:
            await asyncio.sleep(1)
            assert gate.snapshot().held["requests"] == 1
            end.set()
        assert await asyncio.gather(*tasks) == [1000.0, 1001.0, 1002.0]
        assert nothing_is_left(gate)
        assert gate.snapshot().peak["requests"] == 1

    run(scenario())


def test_errors_of_the_door_come_before_the_block() -> None:
    async def scenario() -> None:
        gate, end = gate_of(), asyncio.Event()
        tasks = [asyncio.create_task(hold(gate, end)) for _ in range(3)]
        await settle()
        for ask, error in (
            (ask_of(requests=2), MediaTooLarge),
            (ask_of(requests=1, deadline_s=now_s()), DeadlineExceeded),
            (ASK, QueueFull),
        ):
            with pytest.raises(error):
                await hold(gate, end, ask)
        end.set()
        await asyncio.gather(*tasks)
        assert gate.snapshot().refused == {"media_too_large": 1, "deadline_exceeded": 1, "queue_full": 1}
        assert nothing_is_left(gate)

    run(scenario())


def test_each_wait_ends_at_its_own_time() -> None:
    async def scenario() -> None:
        gate, end = gate_of(), asyncio.Event()
        holder = asyncio.create_task(hold(gate, end))
        await settle()
        ended_s: list[float] = []

        async def wait(ask: Ask) -> None:
            with pytest.raises(DeadlineExceeded):
                await hold(gate, end, ask)
            ended_s.append(now_s() - 1000.0)

        await asyncio.gather(wait(ASK), wait(ask_of("text", requests=1, deadline_s=now_s() + 2)))
        assert ended_s == pytest.approx([2.0, 5.0])
        end.set()
        await holder
        assert nothing_is_left(gate)

    run(scenario())


def test_no_timer_is_left_once_nobody_waits() -> None:
    async def scenario() -> None:
        gate, end = gate_of(), asyncio.Event()
        tasks = [asyncio.create_task(hold(gate, end)) for _ in range(3)]
        await settle()
        end.set()
        await asyncio.gather(*tasks)
        with pytest.raises(RuntimeError, match="nothing is left"):
            asyncio.get_running_loop()._run_once()  # type: ignore[attr-defined]

    run(scenario())


def test_a_timer_that_rings_early_is_set_again() -> None:
    async def scenario() -> None:
        drift_s = [0.0]
        gate = Gate(ONE_AT_A_TIME, clock_s=lambda: now_s() - drift_s[0])
        end = asyncio.Event()
        holder = asyncio.create_task(hold(gate, end))
        await settle()
        waiting = asyncio.create_task(hold(gate, end))
        await settle()
        drift_s[0] = 1.0
        with pytest.raises(DeadlineExceeded):
            await waiting
        assert now_s() == pytest.approx(1006.0)
        end.set()
        await holder

    run(scenario())


def test_one_that_is_pushed_out_of_a_full_queue_is_told_so() -> None:
    async def scenario() -> None:
        gate, end = gate_of(), asyncio.Event()
        flood = [asyncio.create_task(hold(gate, end, ask_of("media", "flood", requests=1))) for _ in range(3)]
        await settle()
        late = asyncio.create_task(hold(gate, end, ask_of("media", "late", requests=1)))
        await settle()
        with pytest.raises(QueueFull, match="try again in"):
            await flood[2]
        end.set()
        await asyncio.gather(*flood[:2], late)

    run(scenario())


def test_what_is_freed_early_serves_the_next() -> None:
    async def scenario() -> None:
        gate = gate_of(limits_of(Resources(media_bytes=10)))
        async with gate.admitted(ask_of(requests=1, media_bytes=8)) as reservation:
            waiting = asyncio.create_task(hold(gate, asyncio.Event(), ask_of(media_bytes=8)))
            await settle()
            reservation.shrink(ResourceVector(requests=1))
            await settle()
            assert gate.snapshot().held["media_bytes"] == 8
            waiting.cancel()
            await settle()
        assert nothing_is_left(gate)

    run(scenario())


class StageCrash(Exception):
    pass


NUM_STAGES = 3
AWAITS = ("waiting", "admitted, not yet awake", *(f"stage {number}" for number in range(NUM_STAGES)))


class Request:
    """One request of the door: waits for its turn, then runs through stages, each of which waits to be let go on.
    `behind` comes next.
    """

    def __init__(self, gate: Gate) -> None:
        self.stages = [asyncio.get_running_loop().create_future() for _ in range(NUM_STAGES)]
        self.reservation: Reservation | None = None
        self.task = asyncio.create_task(self._run(gate))
        self.behind = asyncio.create_task(hold(gate, asyncio.Event(), ask_of("batch", requests=1)))

    async def _run(self, gate: Gate) -> str:
        async with gate.admitted(ask_of("media", "subject", requests=1)) as self.reservation:
            for stage in self.stages:
                await stage
        return "answer"


async def brought_to(point: str, gate: Gate) -> Request:
    """A request that waits at `point`, and has not moved on from there."""
    before = asyncio.Event()
    holder = asyncio.create_task(hold(gate, before))
    await settle()
    request = Request(gate)
    await settle()
    if point == "waiting":
        asyncio.get_running_loop().call_later(1, before.set)
        return request
    before.set()
    if point.startswith("admitted"):
        while gate.snapshot().admitted["media"] < 2:
            await asyncio.sleep(0)
        assert request.reservation is None
        return request
    await holder
    await settle()
    for stage in request.stages[: int(point.split()[1])]:
        stage.set_result(None)
        await settle()
    return request


async def finish(request: Request) -> None:
    """Lets it run to its end."""
    for stage in request.stages:
        if not stage.done():
            stage.set_result(None)
    assert await request.task == "answer"


async def cancel(request: Request) -> None:
    request.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request.task


async def client_gone(request: Request) -> None:
    """Whoever awaited the request is cancelled, as by a time limit around it."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await request.task


async def crash(request: Request) -> None:
    stage = next(stage for stage in request.stages if not stage.done())
    stage.set_exception(StageCrash())
    with pytest.raises(StageCrash):
        await request.task


async def cancel_twice(request: Request) -> None:
    request.task.cancel()
    await cancel(request)


@pytest.mark.parametrize("end", [finish, cancel, cancel_twice, client_gone, crash])
@pytest.mark.parametrize("point", AWAITS)
def test_whatever_ends_a_request_its_reservation_is_released_once(
    point: str, end: Callable[[Request], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    reserved: list[Reservation] = []
    released: list[Reservation] = []
    reserve, release = Ledger.reserve, Ledger.release

    def counting_reserve(ledger: Ledger, vector: ResourceVector) -> Reservation:
        reserved.append(reserve(ledger, vector))
        return reserved[-1]

    def counting_release(ledger: Ledger, reservation: Reservation) -> None:
        released.append(reservation)
        release(ledger, reservation)

    monkeypatch.setattr(Ledger, "reserve", counting_reserve)
    monkeypatch.setattr(Ledger, "release", counting_release)

    async def scenario() -> None:
        gate = gate_of()
        request = await brought_to(point, gate)
        await end(request)
        await asyncio.sleep(2)
        assert gate.snapshot().admitted["batch"] == 1
        request.behind.cancel()
        await settle()
        assert nothing_is_left(gate)
        assert released == reserved

    run(scenario())


def test_a_storm_of_cancels_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        gate, end = gate_of(limits_of(Resources(requests=3), max_queue=50)), asyncio.Event()
        tasks = [asyncio.create_task(hold(gate, end, ask_of("media", f"t{n % 5}", requests=1))) for n in range(50)]
        for number, task in enumerate(tasks):
            if number % 2:
                await asyncio.sleep(0)
            if number % 3:
                task.cancel()
        await settle()
        end.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert sum(isinstance(result, float) for result in results) == 17
        assert nothing_is_left(gate)

    run(scenario())
