"""What the processes of a running server take: memory, files, threads, and its regions of shared memory."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from proteus.launcher import Server
from proteus.launcher.processes import stubs_of

PROC, SHM = Path("/proc"), Path("/dev/shm")
SERVER, WORKERS = "tritonserver", "decode workers"
BLOCK_BYTES = 512  # of st_blocks
KIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """By one process, or by several together."""

    processes: int = 0
    pss_bytes: int = 0  # its own pages, and its share of those that it shares
    rss_bytes: int = 0
    files: int = 0
    threads: int = 0

    def __add__(self, other: Held) -> Held:
        return Held(**{name: getattr(self, name) + getattr(other, name) for name in self.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """At one moment."""

    by_role: Mapping[str, Held]  # a stub's role is its model
    shm_bytes: int

    @property
    def whole(self) -> Held:
        return sum(self.by_role.values(), Held())


def take_sample(server: Server) -> Sample:
    by_role: dict[str, Held] = {}
    for pid, role in roles(server.pid).items():
        held = held_by(pid)
        if held is not None:
            by_role[role] = by_role.get(role, Held()) + held
    return Sample(by_role=by_role, shm_bytes=shm_bytes(server))


def roles(server_pid: int) -> dict[int, str]:
    """The server, its stubs, and the processes that these started."""
    found = {server_pid: SERVER, **stubs_of(server_pid)}
    parents = parents_of_all()
    for pid, parent in parents.items():
        if pid not in found and parent in found and parent != server_pid:
            found[pid] = WORKERS
    return found


def hottest_worker(server: Server) -> int:
    """The decode worker that has worked most: the next picture is likely to be its own."""
    workers = [pid for pid, role in roles(server.pid).items() if role == WORKERS]
    return max(workers, key=_cpu_ticks)


def parents_of_all() -> dict[int, int]:
    parents = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            fields = _stat(int(entry.name))
            if fields is not None:
                parents[int(entry.name)] = int(fields[1])
    return parents


def held_by(pid: int) -> Held | None:
    """None when it has ended meanwhile."""
    folder = PROC / str(pid)
    try:
        kib = Counter(
            {
                name: int(size)
                for name, size in re.findall(r"^(Pss|Rss): +(\d+) kB", (folder / "smaps_rollup").read_text(), re.M)
            }
        )
        files, threads = len(os.listdir(folder / "fd")), len(os.listdir(folder / "task"))
    except OSError:
        return None
    return Held(processes=1, pss_bytes=kib["Pss"] * KIB, rss_bytes=kib["Rss"] * KIB, files=files, threads=threads)


def shm_bytes(server: Server) -> int:
    """Its regions are named for the folder that its stubs run from."""
    stub = next(pid for pids in server.stub_pids().values() for pid in pids)
    folder = Path(os.readlink(PROC / str(stub) / "exe")).parents[2].name
    return sum(region.stat().st_blocks * BLOCK_BYTES for region in SHM.glob(f"{folder}*"))


def _cpu_ticks(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[11]) + int(fields[12]) if fields is not None else -1


def _stat(pid: int) -> list[str] | None:
    """State, parent and the fields after."""
    try:
        return (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
