"""What a server needs of the machine or container around it, told before it is missed."""

from __future__ import annotations

import os
from pathlib import Path

from proteus.launcher.failure import LaunchFailed
from proteus.launcher.guardian import SHM

SHM_ENOUGH_BYTES = 256 << 20  # engines of containers give 64 MiB unless they are told


def refuse_noexec(folder: Path) -> None:
    """LaunchFailed where nothing in `folder` may be run: the stubs of Triton's backends are started from there."""
    if os.statvfs(folder).f_flag & os.ST_NOEXEC:
        raise LaunchFailed(
            f"{folder.parent} is mounted noexec, and the backend stubs are started from there",
            fix="mount it with exec (docker: --tmpfs /tmp:exec), or name another folder in TMPDIR",
        )


def shared_memory_notes(shm: Path = SHM) -> list[str]:
    """A line where shared memory is scarce: the stubs and the server talk through it."""
    room = os.statvfs(shm)
    total_bytes = room.f_frsize * room.f_blocks
    if total_bytes >= SHM_ENOUGH_BYTES:
        return []
    wanted, there = SHM_ENOUGH_BYTES >> 20, total_bytes >> 20
    return [f"{shm} has {there} MiB, {wanted} or more are wanted (docker: --shm-size): large requests will fail"]
