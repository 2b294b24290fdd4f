"""A short soak: mixed requests, cancels, bad input, a crowd, a killed stub and killed decode workers."""

from __future__ import annotations

import asyncio
from pathlib import Path

from perf.soak import soak
from perf.soak_run import Course
from proteus.deployment import Deployment
from proteus.launcher import Server
from tests.server.conftest import DEMO

REQUESTS = 250
SURE = {"answer", "left", "queue_full", "invalid_request", "invalid_picture"}  # the mix has enough of these


def test_nothing_is_lost_and_all_books_agree_after_a_short_soak(tmp_path: Path) -> None:
    """Too short to say anything of memory: `make soak` does."""
    deployment = Deployment.load(DEMO)
    with Server(deployment, log=tmp_path / "server.log") as server:
        result = asyncio.run(soak(server, deployment, Course.of(REQUESTS), stub="vision_encoder", for_memory=False))
        assert server.restarts == 1
    assert result.tally.lost == []
    assert result.tally.unexpected == []
    assert result.faults == []
    assert result.tally.outcomes.total() == REQUESTS
    assert {outcome for _, outcome in result.tally.outcomes} >= SURE
