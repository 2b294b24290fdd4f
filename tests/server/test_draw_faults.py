"""A killed stub of what draws costs the requests in flight and a few seconds; the next picture is the right one."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from proteus.client import Client, ConnectionFailed, ServerError
from proteus.launcher import RestartPolicy, Server
from tests.server.figures import until
from tests.server.test_draw import LONG, PROMPT, files, nobody_draws

CLIENTS = 8
WANTED: dict[str, Any] = {"seed": 5, "steps": 20, "guidance": 3.0, "n": 2}
HANG_S = 60  # what is not over by then hangs
RECONNECT_S = 2  # a client that met the dead server tries to connect again within a second


@pytest.fixture(scope="module")
def mortal_server(draw_deployment: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of its own for the kills: they come faster than the launcher takes for an accident."""
    log = tmp_path_factory.mktemp("mortal_draw") / "server.log"
    with Server(draw_deployment, log=log, restart_policy=RestartPolicy(max_restarts=100)) as running:
        yield running


@pytest.mark.parametrize("model", ["denoiser", "draw", "vae_decoder"])
def test_a_killed_stub_costs_seconds_and_hangs_nobody(mortal_server: Server, model: str) -> None:
    with Client(mortal_server.ports.grpc_url) as client, ThreadPoolExecutor(CLIENTS) as threads:
        expected = files(client.draw(PROMPT, **WANTED))
        outcomes = [threads.submit(_outcome, client, seed) for seed in range(CLIENTS)]
        assert until(mortal_server, lambda now: now.get("proteus_draw_live", 0) > 0)
        restarts = mortal_server.restarts
        os.kill(mortal_server.stub_pids()[model][0], signal.SIGKILL)
        mortal_server.wait_until_ready(HANG_S, restarts=restarts + 1)
        assert {outcome.result(HANG_S) for outcome in outcomes} <= {"drawn", "unavailable", "gone"}
        time.sleep(RECONNECT_S)
        assert files(client.draw(PROMPT, **WANTED)) == expected
    assert until(mortal_server, nobody_draws)


def _outcome(client: Client, seed: int) -> str:
    try:
        client.draw(PROMPT, seed=seed, preview_every=1, timeout_s=HANG_S, **LONG)
    except ConnectionFailed:
        return "gone"
    except ServerError as error:
        return error.code
    return "drawn"
