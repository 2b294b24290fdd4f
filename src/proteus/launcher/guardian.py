"""Holds one tritonserver, or a gateway, and cleans up after it, whatever happens to the launcher.

Runs alone (standard library, `python -I -S guardian.py …`) between the launcher and the server, with a pipe from the
launcher as its standard input. The pipe closes when the launcher stops or dies: the server is then stopped and its
shared memory and folder are removed. The byte `r` asks to kill the server at once and keep the folder: a restart.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

SHM = Path("/dev/shm")
RELEASE = b"r"
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


def remove_shared_memory(prefix: str) -> None:
    """Removes every region whose name starts with `prefix`."""
    for region in SHM.glob(f"{prefix}*"):
        region.unlink(missing_ok=True)


def remove_folder(folder: str | Path) -> None:
    """Removes the folder of a server; one that has already gone is fine."""
    shutil.rmtree(folder, ignore_errors=True)


def kill_group(group: int) -> None:
    """Kills a process group; one that has already gone is fine."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _children() -> Iterator[int]:
    me = str(os.getpid())
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = stat.read_text(errors="replace").rpartition(")")[2].split()[1]
        except (OSError, IndexError):  # it has ended
            continue
        if parent == me:
            yield int(stat.parent.name)


def _end_children() -> None:
    """Ends and reaps whoever is left, until nobody is: who left the server's group, as workers that MPI started do, is
    a child of this process as soon as its own parent has ended.
    """
    while True:
        for pid in _children():
            os.kill(pid, signal.SIGKILL)  # a child keeps its number until it is reaped, which is done here alone
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _launcher_says(server: subprocess.Popen[bytes], poll_s: float = 0.2) -> bytes:
    """Waits for a word of the launcher: `RELEASE`, or nothing when its end of the pipe is closed."""
    while not select.select([0], [], [], poll_s)[0]:
        if server.poll() is not None:
            # The stubs outlive a server that crashed; the launcher decides what comes next.
            kill_group(server.pid)
            poll_s = 3600
    return os.read(0, 1)


def _launcher_is_gone() -> bool:
    """Whether its end of the pipe is closed. Someone else may have ended us while it lives, and it will start anew."""
    return bool(select.select([0], [], [], 0)[0]) and os.read(0, 1) == b""


def _interrupt(server: subprocess.Popen[bytes], grace_s: float) -> None:
    deadline = monotonic() + grace_s
    server.send_signal(signal.SIGINT)
    try:
        server.wait(max(0.0, deadline - monotonic()))
    except subprocess.TimeoutExpired:
        pass


def main(folder: str, shm_prefix: str, log: str, grace_s: str, *command: str) -> None:
    """Starts `command`, prints its process id and stays until it is over."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    with open(log, "ab") as sink:
        server = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
        )
    for ignored in (signal.SIGINT, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    word = b""
    try:
        print(server.pid, flush=True)
        word = _launcher_says(server)
        if word != RELEASE:
            _interrupt(server, float(grace_s))
    finally:
        kill_group(server.pid)
        _end_children()
        remove_shared_memory(shm_prefix)
        if word != RELEASE and _launcher_is_gone():
            remove_folder(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
