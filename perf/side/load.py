"""Closed loop: each client asks its next question as soon as it has its answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from perf.peers.environments import PeerFailed
from perf.side.asks import TOKENS, Ask
from perf.side.turns import Answered, Turn

LONGEST_TURN_S = 180.0


async def drive(answer: Callable[[Ask], Awaitable[Answered]], asks: Sequence[Ask], clients: int) -> Turn:
    """All asks by so many clients; PeerFailed where it takes too long or an answer has another length than wanted."""
    waiting = iter(enumerate(asks))
    answers: dict[int, Answered] = {}

    async def client() -> None:
        for number, ask in waiting:
            answers[number] = await answer(ask)

    start_s = time.perf_counter()
    try:
        async with asyncio.timeout(LONGEST_TURN_S), asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(client())
    except TimeoutError as error:
        raise PeerFailed(f"a turn of {len(asks)} requests is not done after {LONGEST_TURN_S:g} s") from error
    except ExceptionGroup as failures:
        first = failures.exceptions[0]
        raise PeerFailed(f"{type(first).__name__}: {first}") from first
    wall_s = time.perf_counter() - start_s
    return checked(Turn(answers=[answers[number] for number in range(len(asks))], wall_s=wall_s))


def checked(turn: Turn) -> Turn:
    lengths = {answer.num_tokens for answer in turn.answers}
    if lengths != {TOKENS}:
        raise PeerFailed(f"answered with {min(lengths)} to {max(lengths)} tokens, wanted {TOKENS}")
    return turn
