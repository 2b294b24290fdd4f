"""What the server tells on its metrics port."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Callable, Mapping

from proteus.launcher import Server

TOLD_WITHIN_S = 20.0  # figures are told once a second
HELD = (
    "proteus_reserved{",
    "proteus_queue_depth{",
    "proteus_llm_running{",
    "proteus_llm_waiting{",
    'proteus_llm_kv_bytes{state="reserved"}',
    'proteus_llm_kv_bytes{state="used"}',
)


def metrics(server: Server) -> dict[str, float]:
    """Our own figures on Triton's metrics port."""
    with urllib.request.urlopen(server.ports.metrics_url, timeout=10) as response:
        lines = response.read().decode().splitlines()
    found = (re.fullmatch(r"(proteus_\S+(?:\{.*\})?) (\S+)", line) for line in lines)
    return {match[1]: float(match[2]) for match in found if match is not None}


def until(server: Server, holds: Callable[[Mapping[str, float]], bool]) -> bool:
    """Whether it comes to hold of the figures."""
    last_s = time.monotonic() + TOLD_WITHIN_S
    while not (held := holds(metrics(server))) and time.monotonic() < last_s:
        time.sleep(0.2)
    return held


def is_idle(now: Mapping[str, float]) -> bool:
    """Whether the door holds nothing, no answer has a slot, and nobody waits."""
    held = [value for name, value in now.items() if name.startswith(HELD)]
    told = all(any(name.startswith(family) for name in now) for family in HELD)
    return told and not any(held)
