"""The gateway as a process: listens, serves, drains and ends."""

from __future__ import annotations

from pathlib import Path

import uvicorn

from proteus.deployment import Deployment
from proteus.gateway.app import create_app
from proteus.gateway.gateway import Gateway

DEFAULT_PORT = 8090


def run(deployment: Path, *, host: str, port: int) -> None:
    """Until Ctrl-C or SIGTERM. Raises ProteusError when it cannot start."""
    gateway = Gateway(Deployment.load(deployment))
    uvicorn.run(create_app(gateway), host=host, port=port, log_level="warning")
