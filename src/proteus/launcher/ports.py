"""Free loopback ports."""

from __future__ import annotations

import random
import socket
from dataclasses import dataclass

LOOPBACK = "127.0.0.1"
# Below the kernel's range for outgoing connections: a client's socket cannot take our port during a restart.
CANDIDATES = range(20_000, 32_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Where one server listens, always on loopback."""

    http: int
    grpc: int
    metrics: int

    def items(self) -> tuple[tuple[str, int], ...]:
        """Name and port, for messages."""
        return (("http", self.http), ("grpc", self.grpc), ("metrics", self.metrics))

    @property
    def http_url(self) -> str:
        return f"{LOOPBACK}:{self.http}"

    @property
    def grpc_url(self) -> str:
        return f"{LOOPBACK}:{self.grpc}"

    @property
    def metrics_url(self) -> str:
        return f"http://{LOOPBACK}:{self.metrics}/metrics"


def is_free(port: int) -> bool:
    """Whether a server could listen on `port` now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def choose(*, http: int | None, grpc: int | None, metrics: int | None) -> Ports:
    """Keeps the given ports and finds free ones for the others."""
    taken = {port for port in (http, grpc, metrics) if port is not None}
    shuffled = (port for port in random.sample(CANDIDATES, len(CANDIDATES)) if port not in taken)
    free = (port for port in shuffled if is_free(port))
    return Ports(
        http=next(free) if http is None else http,
        grpc=next(free) if grpc is None else grpc,
        metrics=next(free) if metrics is None else metrics,
    )
