"""The parent's side of a contestant: starts it, gives it jobs, ends it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import asdict
from typing import IO, Any, cast

from perf.peers.child import Job, Seconds, Turn
from perf.peers.environments import LOGS, ROOT, VARIABLES, PeerFailed

LONGEST_START_S = 600.0
LONGEST_TURN_S = 300.0
LONGEST_END_S = 30.0


class Contestant:
    """One child process, pinned to `core` if given; PeerFailed where it ends, answers an error or takes too long."""

    def __init__(self, name: str, command: list[str], variables: Mapping[str, str], *, core: int | None) -> None:
        LOGS.mkdir(parents=True, exist_ok=True)
        self.name = name
        self._log = LOGS / f"{name}.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command if core is None else ["taskset", "--cpu-list", str(core), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
                env={**os.environ, **VARIABLES, **variables},
            )
        self.pid = self._process.pid
        self._jobs, self._answers = cast(IO[str], self._process.stdin), cast(IO[str], self._process.stdout)
        try:
            hello = self._read(LONGEST_START_S)
        except PeerFailed:
            self.end()
            raise
        self.versions: dict[str, str] = hello["versions"]
        self.start_s: float = hello["start_s"]

    def take_turn(self, job: Job) -> Turn:
        told = self.ask(asdict(job))
        told["decode_s"], told["whole_s"] = Seconds(**told["decode_s"]), Seconds(**told["whole_s"])
        return Turn(**told)

    def ask(self, job: dict[str, Any]) -> dict[str, Any]:
        """A job of any kind, and what the child made of it."""
        try:
            self._jobs.write(json.dumps(job) + "\n")
            self._jobs.flush()
        except BrokenPipeError:
            pass  # why it ended is told below
        return self._read(LONGEST_TURN_S)

    def end(self) -> None:
        """Without a job to wait for a child ends by itself."""
        with contextlib.suppress(BrokenPipeError):
            self._jobs.close()
        try:
            self._process.wait(LONGEST_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._answers.close()

    def _read(self, longest_s: float) -> dict[str, Any]:
        patience = threading.Timer(longest_s, self._process.kill)
        patience.start()
        try:
            line = self._answers.readline()
        finally:
            patience.cancel()
        if not line:
            raise PeerFailed(f"ended with status {self._process.wait()} ({self._log})")
        told: dict[str, Any] = json.loads(line)
        if "error" in told:
            raise PeerFailed(f"{told['error']} ({self._log})")
        return told
