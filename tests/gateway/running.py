"""A gateway on a free port of this machine, in a thread, in front of servers at the given addresses."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from proteus.deployment import Deployment
from proteus.gateway.app import create_app
from proteus.gateway.gateway import Gateway

DEMO = Path(__file__).parents[2] / "deployments" / "demo.toml"
START_S = 30.0


def in_front_of(*servers: str, deployment: Deployment | None = None, **tables: dict[str, Any]) -> Deployment:
    """The demo's deployment with these gRPC addresses in every pool, and keys of [gateway]'s tables changed."""
    deployment = deployment or Deployment.load(DEMO)
    assert deployment.gateway is not None
    asked = [{"grpc": server} for server in servers]
    changed = deployment.gateway.model_dump()
    changed["pools"] = {"text": asked, "picture": asked, "draw": asked}
    changed["metering"] = None
    for name, values in tables.items():
        changed[name] = values if changed.get(name) is None else changed[name] | values
    return deployment.model_copy(update={"gateway": type(deployment.gateway).model_validate(changed)})


@contextmanager
def running(deployment: Deployment) -> Iterator[str]:
    """Its URL, `http://127.0.0.1:port`; it has stopped when the block ends."""
    config = uvicorn.Config(create_app(Gateway(deployment)), host="127.0.0.1", port=0, log_level="warning")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), name="gateway")
    thread.start()
    try:
        end = threading.Event()
        for _ in range(int(START_S * 100)):
            if server.started or not thread.is_alive():
                break
            end.wait(0.01)
        assert server.started
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
