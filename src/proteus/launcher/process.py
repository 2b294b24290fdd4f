"""One run of a program, mostly tritonserver, behind its guardian: start it, end it."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from proteus.launcher import guardian
from proteus.launcher.failure import LaunchFailed
from proteus.launcher.processes import is_alive, stubs_of

STOP_GRACE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProcess:
    """A program that was started; its guardian is its parent and the only one that cleans up."""

    pid: int
    folder: Path
    shm_prefix: str
    grace_s: float  # to end by itself
    _guardian: subprocess.Popen[bytes]

    @staticmethod
    def start(
        command: list[str],
        *,
        environment: dict[str, str],
        folder: Path,
        shm_prefix: str,
        log: Path,
        grace_s: float = STOP_GRACE_S,
    ) -> ServerProcess:
        """Starts `command`; `folder` and the shared memory named `shm_prefix…` go when it stops."""
        script = [sys.executable, "-I", "-S", guardian.__file__]
        guard = subprocess.Popen(
            [*script, str(folder), shm_prefix, str(log), str(grace_s), *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        answer = guard.stdout.readline() if guard.stdout else b""
        if not answer.strip().isdigit():
            guard.communicate()
            raise LaunchFailed("the server process could not be started", fix="read the error printed above")
        return ServerProcess(pid=int(answer), folder=folder, shm_prefix=shm_prefix, grace_s=grace_s, _guardian=guard)

    def is_alive(self) -> bool:
        return is_alive(self.pid)

    def stubs(self) -> dict[int, str]:
        """Process id -> model of the backend stubs."""
        return stubs_of(self.pid)

    def stop(self) -> None:
        """Ends the server gently, then by force, and removes all it made; safe to call again."""
        self._end(b"")
        guardian.remove_folder(self.folder)

    def kill(self) -> None:
        """Ends the server at once and keeps its folder, for another run."""
        self._end(guardian.RELEASE)

    def _end(self, word: bytes) -> None:
        try:
            self._guardian.communicate(word, timeout=self.grace_s + STOP_GRACE_S)
        except (subprocess.TimeoutExpired, ValueError, BrokenPipeError):
            self._guardian.kill()
            self._guardian.wait()
            self._close_pipes()
        # Does nothing after a guardian that did its work; needed when the guardian itself was killed.
        guardian.kill_group(self.pid)
        guardian.remove_shared_memory(self.shm_prefix)

    def _close_pipes(self) -> None:
        for pipe in (self._guardian.stdin, self._guardian.stdout):
            if pipe is not None:
                with suppress(OSError):  # nobody reads it any more
                    pipe.close()
