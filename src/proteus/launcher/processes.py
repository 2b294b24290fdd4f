"""What /proc says about a tritonserver and its backend stubs."""

from __future__ import annotations

import re
from pathlib import Path

PROC = Path("/proc")
STUB = "triton_python_backend_stub"
INSTANCE = re.compile(r"(?P<model>.+)_\d+_\d+")


def is_alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    fields = _stat(pid)
    return fields is not None and fields[0] not in ("Z", "X")


def stubs_of(server_pid: int) -> dict[int, str]:
    """The backend stubs that `server_pid` started: process id -> model."""
    stubs = {}
    for entry in PROC.iterdir():
        if not entry.name.isdigit():
            continue
        pid = int(entry.name)
        fields = _stat(pid)
        if fields is not None and fields[0] != "Z" and int(fields[1]) == server_pid:
            model = model_of(_command_line(pid))
            if model is not None:
                stubs[pid] = model
    return stubs


def model_of(command_line: list[str]) -> str | None:
    """The model a stub serves, or None when the command line is no stub's.

    A stub's arguments end with its instance, `<model>_<group>_<index>`, and its runtime.
    """
    if len(command_line) < 3 or Path(command_line[0]).name != STUB:
        return None
    instance = INSTANCE.fullmatch(command_line[-2])
    return instance["model"] if instance else command_line[-2]


def _stat(pid: int) -> list[str] | None:
    """State, parent and the fields after; None when there is no such process."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def _command_line(pid: int) -> list[str]:
    try:
        raw = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return []
    return raw.rstrip(b"\0").decode(errors="replace").split("\0")
