"""The gateway as a process: listens, serves, drains and ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from pydantic import ValidationError

from proteus.deployment import Deployment
from proteus.door.document import shorten
from proteus.errors import InvalidRequest
from proteus.gateway.app import create_app
from proteus.gateway.gateway import Gateway
from proteus.limits_gateway import ServerAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Where; port 0 is a free one."""

    host: str
    port: int
    metrics_host: str
    metrics_port: int


def run(deployment: Path, listening: Listening, *, servers: Sequence[ServerAddress], say: Callable[[str], None]) -> int:
    """Until Ctrl-C or SIGTERM; the exit status. Raises ProteusError when it cannot start."""
    gateway = Gateway(in_front_of(Deployment.load(deployment), servers))
    say(f"gateway  http://{listening.host}:{listening.port}")
    uvicorn.run(create_app(gateway), host=listening.host, port=listening.port, log_level="warning")
    return 0


def server_address(words: str) -> ServerAddress:
    """GRPC[,HEALTH]; raises InvalidRequest."""
    grpc, _, health = words.partition(",")
    try:
        return ServerAddress(grpc=grpc, health=health or None)
    except ValidationError as error:
        raise InvalidRequest(
            f"--server {shorten(words)} is no address", fix="write host:port, or host:port,host:port with health"
        ) from error


def in_front_of(deployment: Deployment, servers: Sequence[ServerAddress]) -> Deployment:
    """With these servers in every pool; without any, as it is."""
    if not servers or deployment.gateway is None:
        return deployment
    pools = deployment.gateway.pools.model_copy(update=dict.fromkeys(("text", "picture", "draw"), list(servers)))
    return deployment.model_copy(update={"gateway": deployment.gateway.model_copy(update={"pools": pools})})
