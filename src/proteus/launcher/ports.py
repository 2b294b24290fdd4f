"""Where a server listens: on loopback, unless it is told another address, and on ports that are free."""

from __future__ import annotations

import random
import socket
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address

from proteus.launcher.failure import LaunchFailed
from proteus.limits_gpu import LOOPBACK

# Below the kernel's range for outgoing connections: a client's socket cannot take our port during a restart.
CANDIDATES = range(20_000, 32_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Where one server listens."""

    http: int
    grpc: int
    metrics: int
    host: str = LOOPBACK

    def items(self) -> tuple[tuple[str, int], ...]:
        """Name and port, for messages."""
        return (("http", self.http), ("grpc", self.grpc), ("metrics", self.metrics))

    @property
    def from_here(self) -> str:
        """The address at which this machine reaches the server."""
        return LOOPBACK if IPv4Address(self.host).is_unspecified else self.host

    @property
    def http_url(self) -> str:
        return f"{self.from_here}:{self.http}"

    @property
    def grpc_url(self) -> str:
        return f"{self.from_here}:{self.grpc}"

    @property
    def metrics_url(self) -> str:
        return f"http://{self.from_here}:{self.metrics}/metrics"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it; LaunchFailed where `host` is no IPv4 address."""
    try:
        return IPv4Address(host).is_loopback
    except AddressValueError:
        raise LaunchFailed(
            "the address to listen on is none", limit="an IPv4 address", fix=f"give {LOOPBACK}, or 0.0.0.0 for all"
        ) from None


def is_free(port: int, host: str = LOOPBACK) -> bool:
    """Whether a server could listen on `port` now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def choose(*, http: int | None, grpc: int | None, metrics: int | None, host: str = LOOPBACK) -> Ports:
    """Keeps the given ports and finds free ones for the others. Raises LaunchFailed where there is none."""
    taken = {port for port in (http, grpc, metrics) if port is not None}
    shuffled = (port for port in random.sample(CANDIDATES, len(CANDIDATES)) if port not in taken)
    free = (port for port in shuffled if is_free(port, host))
    try:
        return Ports(
            http=next(free) if http is None else http,
            grpc=next(free) if grpc is None else grpc,
            metrics=next(free) if metrics is None else metrics,
            host=host,
        )
    except StopIteration:
        raise LaunchFailed(f"{host} has no free port", fix="give an address of this machine") from None
