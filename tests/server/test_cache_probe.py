"""Hundreds of tries at what another tenant has in the caches of a server; `python -m perf.cache_probe` makes more."""

from __future__ import annotations

import asyncio

from perf.cache_probe import CACHES, probe
from perf.cache_ways import WAYS
from proteus.deployment import Deployment
from proteus.launcher import Server
from tests.server.conftest import DEMO

TRIES = 30 * len(WAYS)


def test_nobody_sees_what_another_tenant_has_in_a_cache(server: Server) -> None:
    """Time is measured elsewhere: the tests share the machine with too much."""
    findings, _, _ = asyncio.run(probe(server, Deployment.load(DEMO), tries=TRIES, pairs=0))
    assert findings.seen == []
    assert findings.missed == [], "the victims' own entries are there to be seen"
    assert findings.miscounted == []
    assert findings.tries.total() == TRIES
    assert findings.refused["forged_parameter"] == findings.refused["forged_field"] == TRIES / len(WAYS)
    assert all(findings.control[cache] for cache in CACHES)
