"""The foreground server behind `proteus serve`."""

from __future__ import annotations

import signal
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from proteus.errors import ProteusError
from proteus.launcher.drain import drain
from proteus.launcher.failure import LaunchFailed
from proteus.launcher.front import Front, FrontOptions
from proteus.launcher.health import PORT_BESIDE_GATEWAY, HealthServer
from proteus.launcher.repository import Repository
from proteus.launcher.server import Server
from proteus.launcher.tracing import OFF, Tracing
from proteus.limits_gpu import LOOPBACK, Hardware

if TYPE_CHECKING:
    from proteus.deployment import Deployment, Pool

READY_TIMEOUT_S = {"cpu": 120.0, "gpu": 900.0}  # unless told; engines of large models take minutes to load
UNREADY_S = 2.0  # until who watches health has seen a drain, where the deployment file does not say how often that is


def serve(
    deployment: Path | Repository,
    *,
    pool: Pool = "all",
    hardware: Hardware = "cpu",
    http_port: int | None = 8000,
    grpc_port: int | None = 8001,
    metrics_port: int | None = 8002,
    host: str = LOOPBACK,
    health_port: int | None = None,
    health_host: str | None = None,
    gateway_port: int | None = None,
    gateway_host: str = LOOPBACK,
    drain_s: float = 0.0,
    tritonserver: Path | None = None,
    log: Path | None = None,
    ready_timeout_s: float | None = None,
    tracing: Tracing = OFF,
) -> int:
    """Serves the deployment until Ctrl-C or SIGTERM; the exit status for the shell.

    Ports given as None are chosen. The log goes to `log`, by default var/server-<http port>.log. Health is told where
    there is a port for it, 0 being a free one, at `host` unless another address is given; with a gateway there is one.
    The gateway finishes what is open, then the server does, for `drain_s`; a second signal ends all at once.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, _interrupt)  # a shell starts background jobs with Ctrl-C ignored
    try:
        loaded = _loaded(deployment)
        server = Server(
            loaded,
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
        front = None if gateway_port is None else _front_options(loaded, gateway_port, gateway_host, server.log.parent)
        if front is not None and health_port is None:
            health_port = PORT_BESIDE_GATEWAY
        health = None if health_port is None else HealthServer(server, health_port, health_host or host)
        with health or nullcontext(), server, _front(front, server, health) as gateway:
            _announce(server, health, gateway, tracing)
            _wait(server, gateway, drain_s, _unready_s(loaded))
    except KeyboardInterrupt:
        _say("stopped")
    except ProteusError as failure:
        print(failure, file=sys.stderr)
        return 1
    return 0


def _loaded(deployment: Path | Repository) -> Deployment | Repository:
    if isinstance(deployment, Repository):
        return deployment
    from proteus.deployment import Deployment

    return Deployment.load(deployment)


def _front_options(deployment: Deployment | Repository, port: int, host: str, log_folder: Path) -> FrontOptions:
    if isinstance(deployment, Repository) or deployment.gateway is None:
        raise LaunchFailed(
            f"{deployment.path} has no [gateway], which --gateway-port needs",
            fix=f"add the table, as in deployments/demo.toml, or `proteus serve --deployment {deployment.path}` alone",
        )
    drain_s = deployment.gateway.routing.drain_ms / 1e3
    return FrontOptions(deployment=deployment.path, port=port, host=host, drain_s=drain_s, log_folder=log_folder)


def _front(
    options: FrontOptions | None, server: Server, health: HealthServer | None
) -> AbstractContextManager[Front | None]:
    if options is None or health is None:
        return nullcontext()
    return Front(options, grpc_url=server.ports.grpc_url, health_url=health.address, gave_up=server.give_up)


def _announce(server: Server, health: HealthServer | None, gateway: Front | None, tracing: Tracing) -> None:
    _say(f"http     http://{server.ports.http_url}")
    _say(f"grpc     {server.ports.grpc_url}")
    _say(f"metrics  {server.ports.metrics_url}")
    if health is not None:
        _say(f"health   {health.url}")
    _say(f"log      {server.log}")
    if tracing.url or tracing.file:
        _say(f"traces   {tracing.url or tracing.file}")
    if gateway is not None:
        _say(f"gateway  {gateway.url}, its log {gateway.log}")
    _say("stop with Ctrl-C")


def _wait(server: Server, gateway: Front | None, drain_s: float, unready_s: float) -> None:
    """Until a signal comes, and what is open then has ended; a second signal ends this at once."""
    try:
        server.wait()
    except KeyboardInterrupt:
        _finish(server, gateway, drain_s, unready_s)
        raise


def _finish(server: Server, gateway: Front | None, drain_s: float, unready_s: float) -> None:
    if gateway is not None:
        _say("the gateway finishes what is open; once more to stop at once")
        gateway.stop()
    if drain_s:
        _say(f"draining, {drain_s:g} s at most; once more to stop at once")
        if not drain(server, at_least_s=unready_s, at_most_s=drain_s):
            _say("the time is over: what is still open is cut off")


def _unready_s(deployment: Deployment | Repository) -> float:
    if isinstance(deployment, Repository) or deployment.gateway is None:
        return UNREADY_S
    routing = deployment.gateway.routing
    return (2 * routing.health_interval_ms + routing.health_timeout_ms) / 1e3


def _interrupt(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def _say(text: str) -> None:
    print(text, flush=True)
