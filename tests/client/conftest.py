from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tests.client.peer import Peer


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.stop()


@pytest.fixture
def closed_url() -> Iterator[str]:
    """An address where nothing listens: bound, so that nobody else takes it, but not listening."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"
