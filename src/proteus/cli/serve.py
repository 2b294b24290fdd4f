"""`proteus serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from proteus.cli.plainly import told_plainly
from proteus.deployment import Pool
from proteus.limits_gpu import LOOPBACK, TRITONSERVER_VARIABLE, Hardware

DeploymentFile = Annotated[
    Path, typer.Option(exists=True, dir_okay=False, help="The deployment file to serve.", show_default=True)
]
DEMO_DEPLOYMENT = Path("deployments/demo.toml")
Tritonserver = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        file_okay=False,
        envvar=TRITONSERVER_VARIABLE,
        help="Folder of an installed one, such as /opt/tritonserver; by default the embedded one runs.",
        show_default=False,
    ),
]


def serve(
    deployment: DeploymentFile = DEMO_DEPLOYMENT,
    pool: Annotated[Pool, typer.Option(help="Of a fleet, the models that this server has.")] = "all",
    hardware: Annotated[Hardware, typer.Option(help="gpu: as <model>/configs/gpu.pbtxt says.")] = "cpu",
    http_port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    grpc_port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8001,
    metrics_port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8002,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="To listen on, in a private network.")] = LOOPBACK,
    health_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Tell there who is ready; 0 takes a free one.")
    ] = None,
    health_host: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="By default that of --host.", show_default=False)
    ] = None,
    gateway_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="A gateway in front of it; 0 takes a free one.")
    ] = None,
    gateway_host: Annotated[str, typer.Option(metavar="ADDRESS", help="For it to listen on.")] = LOOPBACK,
    drain_s: Annotated[
        float, typer.Option(min=0, max=3600, help="When told to stop: go on for so long, while requests are open.")
    ] = 0.0,
    tritonserver: Tritonserver = None,
    log: Annotated[Path | None, typer.Option(help="The server's log; by default in var/.", show_default=False)] = None,
    ready_timeout_s: Annotated[
        float | None, typer.Option(min=1, help="For all models to load: 120, on GPUs 900.", show_default=False)
    ] = None,
    trace_url: Annotated[str | None, typer.Option(help="Send traces to this collector, OTLP over HTTP.")] = None,
    trace_file: Annotated[Path | None, typer.Option(help="Or write Triton's own, as JSON.", show_default=False)] = None,
    trace_rate: Annotated[int, typer.Option(min=1, help="Trace one request in so many.")] = 1,
) -> None:
    """Run the server, on the loopback interface unless --host says otherwise, until Ctrl-C."""
    from proteus.configs import warning
    from proteus.launcher import Tracing
    from proteus.launcher import serve as run_server

    with told_plainly():
        if (stale := warning(deployment)) is not None:
            typer.echo(stale, err=True)
        status = run_server(
            deployment,
            pool=pool,
            hardware=hardware,
            http_port=http_port or None,
            grpc_port=grpc_port or None,
            metrics_port=metrics_port or None,
            host=host,
            health_port=health_port,
            health_host=health_host,
            gateway_port=gateway_port,
            gateway_host=gateway_host,
            drain_s=drain_s,
            tritonserver=tritonserver,
            log=log,
            ready_timeout_s=ready_timeout_s,
            tracing=Tracing(url=trace_url, file=trace_file, rate=trace_rate),
        )
    raise typer.Exit(status)
