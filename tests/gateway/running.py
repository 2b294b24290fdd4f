"""A gateway on free ports of this machine, in a thread, in front of servers at the given addresses."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proteus.deployment import Deployment
from proteus.gateway.gateway import Gateway
from proteus.gateway.run import Listening, Serving, in_a_loop

DEMO = Path(__file__).parents[2] / "deployments" / "demo.toml"
START_S = 30.0
FREE = Listening(host="127.0.0.1", port=0, metrics_host="127.0.0.1", metrics_port=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """What runs in the thread; only `call` may touch what is of its event loop."""

    serving: Serving
    loop: asyncio.AbstractEventLoop

    @property
    def url(self) -> str:
        return self.serving.url

    @property
    def gateway(self) -> Gateway:
        return self.serving.gateway

    def stop(self) -> None:
        """As a signal does."""
        self.loop.call_soon_threadsafe(self.serving.stop)


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
    with started(deployment) as one:
        yield one.url


@contextmanager
def started(deployment: Deployment, listening: Listening = FREE) -> Iterator[Running]:
    """It has stopped when the block ends, at once, whatever is open."""
    told = threading.Event()
    ran: list[Running] = []
    failed: list[BaseException] = []

    async def serve() -> None:
        serving = Serving(Gateway(deployment), listening)
        ran.append(Running(serving=serving, loop=asyncio.get_running_loop()))
        await serving.serve(told.set)

    def run() -> None:
        try:
            in_a_loop(serve())
        except BaseException as error:
            failed.append(error)
        finally:
            told.set()

    thread = threading.Thread(target=run, name="gateway")
    thread.start()
    assert told.wait(START_S)
    try:
        if not failed:
            yield ran[0]
    finally:
        for _ in range(2 if thread.is_alive() else 0):
            with suppress(RuntimeError):  # it has stopped by itself
                ran[0].stop()
        thread.join()
        if failed:
            raise failed[0]
