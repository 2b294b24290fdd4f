"""The foreground server behind `proteus serve`."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

from proteus.errors import ProteusError
from proteus.launcher.server import Server
from proteus.launcher.tracing import OFF, Tracing


def serve(
    deployment: Path,
    *,
    http_port: int | None = 8000,
    grpc_port: int | None = 8001,
    metrics_port: int | None = 8002,
    log: Path | None = None,
    tracing: Tracing = OFF,
) -> int:
    """Serves the deployment until Ctrl-C or SIGTERM; the exit status for the shell.

    Ports given as None are chosen. The log goes to `log`, by default var/server-<http port>.log.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, _interrupt)  # a shell starts background jobs with Ctrl-C ignored
    try:
        server = Server(
            deployment,
            http_port=http_port,
            grpc_port=grpc_port,
            metrics_port=metrics_port,
            log=log or Path("var", f"server-{http_port or 'any'}.log"),
            show_progress=True,
            tracing=tracing,
        )
        with server:
            _say(f"http     http://{server.ports.http_url}")
            _say(f"grpc     {server.ports.grpc_url}")
            _say(f"metrics  {server.ports.metrics_url}")
            _say(f"log      {server.log}")
            if tracing.url or tracing.file:
                _say(f"traces   {tracing.url or tracing.file}")
            _say("stop with Ctrl-C")
            server.wait()
    except KeyboardInterrupt:
        _say("stopped")
    except ProteusError as failure:
        print(failure, file=sys.stderr)
        return 1
    return 0


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _say(text: str) -> None:
    print(text, flush=True)
