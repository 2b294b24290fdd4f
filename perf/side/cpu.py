"""CPU time of a process and all below it: what a picture costs, whoever else is on the machine."""

from __future__ import annotations

import os
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s(root: int) -> float:
    """Of those that live now; a process that ended took its time along."""
    seconds, parents = {}, {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        parents[int(folder.name)] = int(fields[1])
        seconds[int(folder.name)] = (int(fields[11]) + int(fields[12])) / TICKS_PER_S
    return sum(spent for pid, spent in seconds.items() if _is_below(pid, root, parents))


def _is_below(pid: int, root: int, parents: dict[int, int]) -> bool:
    while pid != root and pid in parents:
        pid = parents[pid]
    return pid == root
