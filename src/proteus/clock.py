"""The machine's monotonic clock and its name: who knows it by the same name reads the same clock."""

from __future__ import annotations

import hashlib
import time
from functools import cache
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
NAME_CHARS = 16


def now_ns() -> int:
    return time.monotonic_ns()


@cache
def clock_name(boot_id: Path = BOOT_ID) -> str | None:
    """Of the machine since it was started, containers on it included; None where the system names no start."""
    try:
        return hashlib.sha256(boot_id.read_bytes().strip()).hexdigest()[:NAME_CHARS]
    except OSError:
        return None
