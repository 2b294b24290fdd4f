"""Cancelled requests leave nothing behind; a killed stub costs the requests in flight and a few seconds."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from export.train.tokens import DESCRIBE
from export.world.draw import draw
from export.world.scene import scene
from proteus.client import Answer, AsyncClient, Client, ClientError
from proteus.launcher import RestartPolicy, Server

DEPLOYMENT = Path("deployments/demo.toml")
ROUNDS = 6  # a larger burst than any before grows a pool once; a leak grows it in every round
LONG = 600  # tokens of an answer that still goes on when its client leaves
SETTLED_S = 3
THREADS_END_S = 10
RECONNECT_S = 2  # a client that met the dead server tries to connect again within a second
HANG_S = 60  # what is not over by then hangs; `perf/recovery.py` measures how long a recovery really takes


def _shm_bytes(server: Server) -> int:
    """Shared memory of this server: its regions are named for the folder that its stubs run from."""
    stub = server.stub_pids()["chat"][0]
    folder = Path(os.readlink(f"/proc/{stub}/exe")).parents[2].name
    return sum(path.stat().st_blocks * 512 for path in Path("/dev/shm").glob(f"{folder}*"))


def _threads(server: Server) -> int:
    """Threads of the model processes together."""
    return sum(len(os.listdir(f"/proc/{pid}/task")) for pids in server.stub_pids().values() for pid in pids)


def _ask(client: Client, seed: int) -> Answer:
    return client.ask(DESCRIBE[0], draw(scene("heldout", seed)), max_tokens=40, timeout_s=60)


async def _cancel_all(url: str, seeds: range) -> int:
    """One ask per seed, sixteen at a time, each cancelled at a random moment; returns how many were cut short."""
    gate = asyncio.Semaphore(16)

    async def one(client: AsyncClient, seed: int) -> bool:
        rng = random.Random(seed)
        picture = draw(scene("heldout", seed % 20))
        async with gate:
            ask = client.ask(DESCRIBE[0], picture, max_tokens=LONG, min_tokens=LONG, temperature=2.0, seed=seed)
            task = asyncio.create_task(ask)
            await asyncio.wait([task], timeout=rng.uniform(0, 0.25))
            return task.cancel()

    async with AsyncClient(url) as client:
        return sum(await asyncio.gather(*(one(client, seed) for seed in seeds)))


def test_two_hundred_cancels_leave_nothing_behind(server: Server) -> None:
    with Client(server.ports.grpc_url) as client, ThreadPoolExecutor(16) as pool:
        expected = [_ask(client, seed).token_ids for seed in range(8)]
        _round_leaves_nothing(server, 0)  # the pools grow to their size
        assert any(_round_leaves_nothing(server, index) for index in range(1, ROUNDS))
        answers = list(pool.map(lambda seed: _ask(client, seed), range(8)))
        assert [answer.token_ids for answer in answers] == expected
        slots_free = [answer.stages_ms["lm_queue"] for answer in answers]
        assert max(slots_free) < 5_000, "a slot is still taken"


def _round_leaves_nothing(server: Server, index: int) -> bool:
    """Two hundred cancels, then as many threads and as much shared memory as before them."""
    threads, shm = _threads(server), _shm_bytes(server)
    assert asyncio.run(_cancel_all(server.ports.grpc_url, range(200 * index, 200 * index + 200))) > 100
    time.sleep(SETTLED_S)
    return _falls_to(lambda: _threads(server), threads) and 0 < _shm_bytes(server) <= shm


def _falls_to(count: Callable[[], int], limit: int) -> bool:
    """Threads that wait for another model end some seconds after their client has left."""
    deadline = time.monotonic() + THREADS_END_S
    while count() > limit and time.monotonic() < deadline:
        time.sleep(0.2)
    return count() <= limit


@pytest.fixture(scope="module")
def mortal_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of its own for the kills: they come faster than the launcher takes for an accident."""
    log = tmp_path_factory.mktemp("mortal") / "server.log"
    with Server(DEPLOYMENT, log=log, restart_policy=RestartPolicy(max_restarts=100)) as running:
        yield running


@pytest.mark.parametrize("model", ["chat", "llm", "image_preprocess", "vision_encoder", "connector"])
def test_a_killed_stub_costs_seconds_and_hangs_nobody(mortal_server: Server, model: str) -> None:
    """`kill -9` of the stub under load: every request ends, with an answer or an error, and service is back."""
    with Client(mortal_server.ports.grpc_url) as client, ThreadPoolExecutor(8) as pool:
        expected = _ask(client, 0).token_ids
        outcomes = [pool.submit(_outcome, client, seed) for seed in range(64)]
        time.sleep(0.3)
        restarts = mortal_server.restarts
        os.kill(mortal_server.stub_pids()[model][0], signal.SIGKILL)
        mortal_server.wait_until_ready(HANG_S, restarts=restarts + 1)
        assert {outcome.result(timeout=60) for outcome in outcomes} <= {"answer", "error"}
        time.sleep(RECONNECT_S)
        assert _ask(client, 0).token_ids == expected


def _outcome(client: Client, seed: int) -> str:
    try:
        client.ask(DESCRIBE[0], draw(scene("heldout", seed)), max_tokens=40, timeout_s=50)
    except ClientError as error:
        return "hung" if "in time" in str(error) else "error"
    return "answer"
