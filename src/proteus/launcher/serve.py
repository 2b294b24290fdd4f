"""The foreground server behind `proteus serve`."""

from __future__ import annotations

import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from proteus.errors import ProteusError
from proteus.launcher.health import HealthServer
from proteus.launcher.server import Server
from proteus.launcher.tracing import OFF, Tracing
from proteus.limits_gpu import LOOPBACK, Hardware

if TYPE_CHECKING:
    from proteus.deployment import Pool

READY_TIMEOUT_S = {"cpu": 120.0, "gpu": 900.0}  # unless told; engines of large models take minutes to load


def serve(
    deployment: Path,
    *,
    pool: Pool = "all",
    hardware: Hardware = "cpu",
    http_port: int | None = 8000,
    grpc_port: int | None = 8001,
    metrics_port: int | None = 8002,
    host: str = LOOPBACK,
    health_port: int | None = None,
    health_host: str | None = None,
    tritonserver: Path | None = None,
    log: Path | None = None,
    ready_timeout_s: float | None = None,
    tracing: Tracing = OFF,
) -> int:
    """Serves the deployment until Ctrl-C or SIGTERM; the exit status for the shell.

    Ports given as None are chosen. The log goes to `log`, by default var/server-<http port>.log. Health is told where
    there is a port for it, 0 being a free one, at `host` unless another address is given.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, _interrupt)  # a shell starts background jobs with Ctrl-C ignored
    try:
        server = Server(
            deployment,
            pool=pool,
            hardware=hardware,
            http_port=http_port,
            grpc_port=grpc_port,
            metrics_port=metrics_port,
            host=host,
            tritonserver=tritonserver,
            log=log or Path("var", f"server-{http_port or 'any'}.log"),
            show_progress=True,
            ready_timeout_s=ready_timeout_s or READY_TIMEOUT_S[hardware],
            tracing=tracing,
        )
        health = nullcontext() if health_port is None else HealthServer(server, health_port, health_host or host)
        with health, server:
            _say(f"http     http://{server.ports.http_url}")
            _say(f"grpc     {server.ports.grpc_url}")
            _say(f"metrics  {server.ports.metrics_url}")
            if isinstance(health, HealthServer):
                _say(f"health   {health.url}")
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
