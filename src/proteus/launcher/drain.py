"""Ends a server without losing what is open: it says that it is not ready, and goes on until nothing is open."""

from __future__ import annotations

import http.client
import re
from collections.abc import Callable
from time import monotonic, sleep
from typing import Protocol

from proteus.launcher.ports import Ports

POLL_S = 0.2
QUIET_S = 1.5  # the doors tell their figures once a second
METRICS_TIMEOUT_S = 2.0
# What is open at the doors, and what waits for any model: an encoder server has no door.
OPEN = re.compile(r"^(?:proteus(?:_draw)?_open_requests|nv_inference_pending_request_count)(?:\{[^}]*\})? (\S+)$", re.M)


class Drained(Protocol):
    @property
    def ports(self) -> Ports: ...

    @property
    def answers(self) -> bool: ...

    def begin_drain(self) -> None: ...


def drain(
    server: Drained,
    *,
    at_least_s: float,
    at_most_s: float,
    count_open: Callable[[Ports], int | None] | None = None,
    clock: Callable[[], float] = monotonic,
    wait: Callable[[float], None] = sleep,
) -> bool:
    """Whether nothing is open any more; False when `at_most_s` are over.

    New requests are answered all the while: those who watch the server's health need `at_least_s` to see it.
    """
    count = count_open or count_open_requests
    server.begin_drain()
    began, quiet_since = clock(), None
    while (now := clock()) - began < at_most_s:
        if not server.answers:
            return True  # it died, and everything that was open with it
        if count(server.ports) != 0:
            quiet_since = None
        elif quiet_since is None:
            quiet_since = max(now, began + at_least_s)
        elif now - quiet_since >= QUIET_S:
            return True
        wait(POLL_S)
    return False


def count_open_requests(listening: Ports) -> int | None:
    """By the server's metrics; None where nobody answers."""
    connection = http.client.HTTPConnection(listening.from_here, listening.metrics, timeout=METRICS_TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        page = connection.getresponse().read().decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return sum(int(float(value)) for value in OPEN.findall(page))
