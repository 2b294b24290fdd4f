"""The fleet that is simulated to compare rules: servers that share their speed, and what each rule makes of it."""

from __future__ import annotations

import pytest

from perf.routing import KINDS, RULES, Job, SimulatedServer, simulated
from proteus.gateway.routing.servers import WHOLE

HEAVY = "four of 12 MP"


def job(kind: str = "text, 12 tokens", *, part: float = 1 / 64, work_s: float = 1.0) -> Job:
    return Job(kind, int(part * WHOLE), {"pixels": part}, work_s)


def test_jobs_share_the_speed_of_a_server() -> None:
    server = SimulatedServer()
    server.add(job(work_s=1.0))
    server.add(job(work_s=2.0))
    assert server.advance(1.9) == []
    assert [latency_s for latency_s, _ in server.advance(2.5)] == [pytest.approx(2.0)]
    assert [latency_s for latency_s, _ in server.advance(9.0)] == [pytest.approx(3.0)]
    assert (server.cost, server.held["pixels"]) == (0, 0)


def test_by_cost_the_large_ones_find_room() -> None:
    jobs = {name: job(name, part=0.24, work_s=2.0) if name == HEAVY else job(name, work_s=0.05) for name in KINDS}
    no_room = {rule: simulated(jobs, "many pictures", 0.85, rule, 2_000).no_room for rule in RULES}
    assert no_room["least cost"] < no_room["least count"] < no_room["round robin"]
