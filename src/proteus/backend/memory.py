"""Memory of the server and of its stubs, as Linux counts it: told by one door for all models."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from proteus.admission.figures import Figure

PROC = Path("/proc")
STUB = "triton_python_backend_stub"
INSTANCE = re.compile(r"(?P<model>.+)_\d+_\d+")  # last but one of a stub's arguments: `<model>_<group>_<index>`
SERVER = "tritonserver"
TELL_MEMORY_S = 10.0  # to read it takes some 60 ms of a core
KIB = 1024

MEMORY_FIGURES = (
    Figure(
        name="proteus_stub_memory_bytes", meaning="Memory of the models' processes and of the server", label="model"
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFigures:
    """Proportional set size: a page that several processes share counts in each by its share, so that models add up."""

    by_model: Mapping[str, float]

    def values(self, name: str) -> Mapping[str, float]:
        """Of the one family there is."""
        return {"proteus_stub_memory_bytes": self.by_model}[name]


def read_memory(server_pid: int | None = None) -> MemoryFigures:
    """Of the server that started this process; what a stub started, such as decode workers, counts with its model."""
    server = os.getppid() if server_pid is None else server_pid
    children = _children()
    by_model = {SERVER: _bytes(server)}
    for stub in children.get(server, []):
        model = _model(stub)
        if model is not None:
            family = sum(_bytes(pid) for pid in _with_descendants(stub, children))
            by_model[model] = by_model.get(model, 0) + family
    return MemoryFigures(by_model=by_model)


def _children() -> Mapping[int, list[int]]:
    """Process id -> those that it started."""
    children: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (stat := _read(entry / "stat")):
            parent = int(stat.rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    return children


def _with_descendants(pid: int, children: Mapping[int, list[int]]) -> Iterator[int]:
    yield pid
    for child in children.get(pid, []):
        yield from _with_descendants(child, children)


def _model(pid: int) -> str | None:
    arguments = _read(PROC / str(pid) / "cmdline").rstrip("\0").split("\0")
    if len(arguments) < 3 or Path(arguments[0]).name != STUB:
        return None
    instance = INSTANCE.fullmatch(arguments[-2])
    return instance["model"] if instance else arguments[-2]


def _bytes(pid: int) -> float:
    """Proportional set size; resident size where Linux does not tell that; 0 of a process that is gone."""
    for line in _read(PROC / str(pid) / "smaps_rollup").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * KIB
    resident = _read(PROC / str(pid) / "statm").split()
    return int(resident[1]) * os.sysconf("SC_PAGE_SIZE") if resident else 0


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:  # it ended, or is not ours
        return ""
