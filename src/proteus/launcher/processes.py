"""What /proc says about a tritonserver and its backend stubs."""

from __future__ import annotations

import os
import re
import select
import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from time import sleep

PROC = Path("/proc")
STAT_BYTES = 1024  # more than the line has
LOOK_S = 0.2  # between two looks, where the kernel does not tell
ENDED = ("Z", "X")  # a zombie, and what it is for a moment after
STUB = "triton_python_backend_stub"
INSTANCE = re.compile(r"(?P<model>.+)_\d+_\d+")


def is_alive(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    fields = _stat(pid)
    return fields is not None and fields[0] not in ENDED


class Lives:
    """As `is_alive`, for who asks several times a second: the file of /proc is opened once, until `forget`."""

    def __init__(self) -> None:
        self._files: dict[int, int] = {}
        self._lock = threading.Lock()  # a file that is closed while it is read may be another one by then

    def __call__(self, pid: int) -> bool:
        with self._lock:
            try:
                if pid not in self._files:
                    # Of its first thread alone: the times of all of them would be added up for the whole process.
                    self._files[pid] = os.open(f"{PROC}/{pid}/task/{pid}/stat", os.O_RDONLY)
                line = os.pread(self._files[pid], STAT_BYTES, 0)
            except OSError:  # there is no such process any more
                return False
        return line.rpartition(b") ")[2][:1].decode() not in ENDED

    def forget(self) -> None:
        """All of them: others follow."""
        with self._lock:
            while self._files:
                os.close(self._files.popitem()[1])


def tell_of_end(pids: Iterable[int], tell: Callable[[], None]) -> None:
    """Calls `tell`, from a thread that lives until then, as soon as one of these processes has ended.

    Never, where the system gives no thread: who needs to know looks once in a while beside.
    """

    def wait() -> None:
        try:
            _wait_for_end(watched)
        except (OSError, AttributeError):  # one is gone, or kernel, sandbox or this Python do not know pidfd_open
            while all(is_alive(pid) for pid in watched):
                sleep(LOOK_S)
        tell()

    watched = tuple(pids)
    with suppress(RuntimeError):
        threading.Thread(target=wait, name="proteus-end", daemon=True).start()


def _wait_for_end(pids: Iterable[int]) -> None:
    ended = select.poll()
    with ExitStack() as files:
        for pid in pids:
            file = os.pidfd_open(pid)
            files.callback(os.close, file)
            ended.register(file, select.POLLIN)
        ended.poll()


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
        file = os.open(f"{PROC}/{pid}/stat", os.O_RDONLY)
        try:
            line = os.read(file, STAT_BYTES)
        finally:
            os.close(file)
    except OSError:
        return None
    return line.rpartition(b")")[2].decode().split()


def _command_line(pid: int) -> list[str]:
    try:
        raw = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return []
    return raw.rstrip(b"\0").decode(errors="replace").split("\0")
