"""`proteus gateway`: the OpenAI-compatible door in front of servers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from proteus.cli.plainly import told_plainly
from proteus.limits_gpu import LOOPBACK

DEPLOYMENT = Path("deployments/demo.toml")
PORT, METRICS_PORT = 8090, 8091


def gateway(
    deployment: Annotated[
        Path, typer.Option(exists=True, dir_okay=False, help="The deployment file whose [gateway] is served.")
    ] = DEPLOYMENT,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="To listen on; beyond this machine only with keys.")
    ] = LOOPBACK,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = PORT,
    metrics_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Of the operations port: metrics and health in full.")
    ] = METRICS_PORT,
    metrics_host: Annotated[str, typer.Option(metavar="ADDRESS", help="Of the operations port.")] = LOOPBACK,
    server: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GRPC[,HEALTH]",
            help="host:port of a server's gRPC port, and of its health port; instead of those of every pool.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Answer OpenAI's requests over HTTP in front of running servers, until Ctrl-C or SIGTERM."""
    from proteus.gateway.run import Listening, run, server_address

    with told_plainly():
        status = run(
            deployment,
            Listening(host=host, port=port, metrics_host=metrics_host, metrics_port=metrics_port),
            servers=[server_address(words) for words in server or ()],
            say=typer.echo,
        )
    raise typer.Exit(status)
