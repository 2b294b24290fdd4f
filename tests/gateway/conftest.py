"""A peer that speaks Triton's protocol, and a gateway in front of it. tests/server holds what needs the real server."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.client.peer import Peer
from tests.gateway.running import in_front_of, running


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    started = Peer()
    yield started
    started.stop()


@pytest.fixture(scope="module")
def gateway_url(peer: Peer) -> Iterator[str]:
    """The demo's gateway in front of the peer."""
    with running(in_front_of(peer.url)) as url:
        yield url


@pytest.fixture
def http(gateway_url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway_url, timeout=30) as client:
        yield client
