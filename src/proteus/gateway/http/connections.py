"""The connections that are open, by network address, and why others were refused or cut off."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable
from http import HTTPStatus

from proteus.errors import InvalidRequest, ProteusError, QueueFull, Unavailable
from proteus.gateway.errors import http_error
from proteus.gateway.http.addresses import Proxies, network_of
from proteus.gateway.http.browser import SECURITY_HEADERS
from proteus.limits_gateway import GatewayHttp

COME_BACK_S = 1
LOG_EVERY_S = 10.0  # of one reason; a flood of them must not become one of lines
REASONS = (
    "connections",
    "connections_of_address",
    "head_late",
    "head_size",
    "malformed",
    "upgrade",
    "pipelined",
    "framing",
    "body_unwanted",
    "not_read",
)
log = logging.getLogger(__name__)


class Connections:
    """For one event loop and one port."""

    def __init__(self, limits: GatewayHttp, proxies: Proxies, clock_s: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self.open = 0
        self.refused: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        self._proxies, self._clock_s = proxies, clock_s
        self._of_network: Counter[str] = Counter()
        self._told: dict[str, tuple[float, int]] = {}  # reason -> when it was last logged, and its count then
        self._full = ready_made(
            Unavailable(
                "too many connections are open",
                limit=f"[gateway.http] max_connections = {limits.max_connections:,}",
                fix=f"try again in {COME_BACK_S:.1f} s",
            )
        )
        self._full_of_address = ready_made(
            QueueFull(
                "too many connections of your address are open",
                limit=f"[gateway.http] max_connections_per_address = {limits.max_connections_per_address:,}",
                retry_after_s=COME_BACK_S,
            )
        )

    def enter(self, address: str) -> bytes | None:
        """None where there is room, which `leave` gives back; otherwise the whole answer."""
        if self.open >= self.limits.max_connections:
            self.refuse("connections", address)
            return self._full
        network = network_of(address)
        if self._of_network[network] >= self.limits.max_connections_per_address and not self._proxies.has(address):
            self.refuse("connections_of_address", address)
            return self._full_of_address
        self.open += 1
        self._of_network[network] += 1
        return None

    def leave(self, address: str) -> None:
        network = network_of(address)
        self.open -= 1
        self._of_network[network] -= 1
        if not self._of_network[network]:
            del self._of_network[network]

    def refuse(self, reason: str, address: str) -> None:
        """Counts it, and logs it now and then."""
        self.refused[reason] += 1
        now_s, (told_s, told) = self._clock_s(), self._told.get(reason, (-LOG_EVERY_S, 0))
        if now_s - told_s >= LOG_EVERY_S:
            count = self.refused[reason]
            log.warning("%s: %d refused or cut off, last of %s", reason, count - told, network_of(address))
            self._told[reason] = now_s, count


def ready_made(error: ProteusError) -> bytes:
    """A whole answer, after which the connection is closed."""
    status, document, retry_after_s = http_error(error)
    body = json.dumps(document).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
        *SECURITY_HEADERS.items(),
    ]
    if retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % max(1, round(retry_after_s))))
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}".encode(), *(b": ".join(pair) for pair in headers)]
    return b"\r\n".join((*lines, b"", body))


def malformed(what: str, fix: str = "send plain HTTP/1.1") -> InvalidRequest:
    return InvalidRequest(what, fix=fix)
