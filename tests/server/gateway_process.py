"""`proteus gateway` as a user starts it, in front of a server of a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from perf.gateway_servers import Started, changed
from proteus.launcher import Server


@contextmanager
def gateway_of(server: Server, folder: Path) -> Iterator[Started]:
    """Its addresses by `gateway` and `metrics`; it has stopped when the block ends."""
    ports = ["--port", "0", "--metrics-port", "0", "--server", server.ports.grpc_url]
    deployment = str(changed(folder / "gateway.toml"))
    started = Started(["-m", "proteus.cli", "gateway", "--deployment", deployment, *ports], folder / "gateway.log")
    try:
        yield started
    finally:
        started.end()
