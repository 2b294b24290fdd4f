from __future__ import annotations

import asyncio
import random

import pytest

from proteus.cache.single_flight import SingleFlight


class Computation:
    """Counts how often and how many at once it runs, and ends when told."""

    def __init__(self, error: Exception | None = None) -> None:
        self.runs = self.at_once = self.most_at_once = 0
        self.go_on = asyncio.Event()
        self.error = error

    async def __call__(self) -> int:
        self.runs += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await self.go_on.wait()
        finally:
            self.at_once -= 1
        if self.error is not None:
            raise self.error
        return self.runs


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_many_requests_for_one_key_compute_once() -> None:
    async def scenario() -> None:
        flights = SingleFlight[str, int]()
        compute = Computation()
        tasks = [asyncio.create_task(flights.run("a", compute)) for _ in range(100)]
        await settle()
        compute.go_on.set()
        landings = await asyncio.gather(*tasks)
        assert compute.runs == 1
        assert [landing.value for landing in landings] == [1] * 100
        assert sum(not landing.shared for landing in landings) == 1
        assert len(flights) == 0

    asyncio.run(scenario())


def test_other_keys_do_not_wait() -> None:
    async def scenario() -> None:
        flights = SingleFlight[str, int]()
        slow, fast = Computation(), Computation()
        fast.go_on.set()
        waiting = asyncio.create_task(flights.run("slow", slow))
        await settle()
        assert (await flights.run("fast", fast)).value == 1
        slow.go_on.set()
        await waiting

    asyncio.run(scenario())


def test_request_after_the_end_computes_again() -> None:
    async def scenario() -> None:
        flights = SingleFlight[str, int]()
        compute = Computation()
        compute.go_on.set()
        assert (await flights.run("a", compute)).value == 1
        assert (await flights.run("a", compute)).value == 2

    asyncio.run(scenario())


def test_cancelled_leader_hands_over_to_one_who_waits() -> None:
    async def scenario() -> None:
        flights = SingleFlight[str, int]()
        compute = Computation()
        tasks = [asyncio.create_task(flights.run("a", compute)) for _ in range(5)]
        await settle()
        tasks[0].cancel()
        await settle()
        assert (compute.runs, compute.at_once) == (2, 1)
        compute.go_on.set()
        landings = await asyncio.gather(*tasks[1:])
        assert [landing.value for landing in landings] == [2] * 4
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        assert len(flights) == 0

    asyncio.run(scenario())


def test_cancelled_waiter_leaves_the_others_alone() -> None:
    async def scenario() -> None:
        flights = SingleFlight[str, int]()
        compute = Computation()
        tasks = [asyncio.create_task(flights.run("a", compute)) for _ in range(5)]
        await settle()
        tasks[3].cancel()
        await settle()
        compute.go_on.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert compute.runs == 1
        assert sum(isinstance(result, asyncio.CancelledError) for result in results) == 1

    asyncio.run(scenario())


def test_failing_leader_fails_alone_and_the_next_one_tries() -> None:
    async def scenario() -> None:
        flights = SingleFlight[str, int]()
        broken, sound = Computation(OSError("lost")), Computation()
        leader = asyncio.create_task(flights.run("a", broken))
        await settle()
        waiters = [asyncio.create_task(flights.run("a", sound)) for _ in range(3)]
        await settle()
        broken.go_on.set()
        with pytest.raises(OSError, match="lost"):
            await leader
        await settle()
        sound.go_on.set()
        assert [landing.value for landing in await asyncio.gather(*waiters)] == [1] * 3

    asyncio.run(scenario())


def test_error_of_the_content_itself_is_everyones() -> None:
    async def scenario() -> None:
        flights = SingleFlight[str, int](shared_errors=(ValueError,))
        compute = Computation(ValueError("no picture"))
        tasks = [asyncio.create_task(flights.run("a", compute)) for _ in range(9)]
        await settle()
        compute.go_on.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert compute.runs == 1
        assert all(isinstance(result, ValueError) for result in results)
        assert len(flights) == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("seed", range(5))
def test_random_cancels_and_failures_leave_nothing_behind(seed: int) -> None:
    async def scenario() -> None:
        rng = random.Random(seed)
        flights = SingleFlight[int, int]()
        running: dict[int, int] = {}

        async def compute(key: int) -> int:
            running[key] = running.get(key, 0) + 1
            assert running[key] == 1, "two computations of one key at once"
            try:
                await asyncio.sleep(rng.random() * 0.003)
                if rng.random() < 0.3:
                    raise OSError
                return key
            finally:
                running[key] -= 1

        async def ask() -> None:
            await asyncio.sleep(rng.random() * 0.02)
            key = rng.randrange(4)
            try:
                assert (await flights.run(key, lambda: compute(key))).value == key
            except OSError:
                return

        tasks = [asyncio.create_task(ask()) for _ in range(300)]
        for task in rng.sample(tasks, 100):
            await asyncio.sleep(0.0001)
            task.cancel()
        results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 20)
        assert {type(result) for result in results} <= {type(None), asyncio.CancelledError}
        assert len(flights) == 0

    asyncio.run(scenario())
