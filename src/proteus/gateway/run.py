"""The gateway as a process: listens, serves, drains and ends."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import uvicorn
import uvloop
from pydantic import ValidationError
from starlette.types import ASGIApp

from proteus.deployment import Deployment, DeploymentError
from proteus.door.document import shorten
from proteus.errors import InvalidRequest
from proteus.gateway.app import create_app
from proteus.gateway.errors import CannotListen
from proteus.gateway.gateway import Gateway
from proteus.gateway.http.browser import Browser
from proteus.gateway.http.connections import Connections
from proteus.gateway.http.protocol import GatewayProtocol
from proteus.gateway.operations import MAX_CONNECTIONS, Operations
from proteus.limits_gateway import GatewayHttp, ServerAddress

BACKLOG = 2_048
OTHER_FILES = 256  # beside clients' connections: servers, logs, the program itself
CLOSE_S = 1.0  # for clients to be told that their requests are ended, and to read it
ANY_HOST = "*"
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Where; port 0 is a free one."""

    host: str
    port: int
    metrics_host: str
    metrics_port: int


def run(deployment: Path, listening: Listening, *, servers: Sequence[ServerAddress], say: Callable[[str], None]) -> int:
    """Until Ctrl-C or SIGTERM; the exit status. Raises ProteusError when it cannot start."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    in_a_loop(_run(in_front_of(Deployment.load(deployment), servers), listening, say))
    say("stopped")
    return 0


def in_a_loop(work: Coroutine[Any, Any, None]) -> None:
    """To its end, in an event loop on libuv.

    A request takes a fifth less of a core than in asyncio's own; a crowd is accepted bit by bit between others' turns.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)


async def _run(deployment: Deployment, listening: Listening, say: Callable[[str], None]) -> None:
    serving = Serving(Gateway(deployment), listening)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, serving.stop)

    def told() -> None:
        _keep_what_is_there()
        say(f"gateway  {serving.url}")
        say(f"metrics  {serving.metrics_url}")
        say("stop with Ctrl-C")

    await serving.serve(told)


def _keep_what_is_there() -> None:
    """Code and models stay: to look through them for garbage, again and again, would hold requests up for 100 ms."""
    gc.collect()
    gc.freeze()


class Serving:
    """A gateway on its two ports. Raises ProteusError where it must not listen, or cannot."""

    def __init__(self, gateway: Gateway, listening: Listening) -> None:
        _check_host(listening.host, gateway)
        _make_room(gateway.settings.http)
        self.gateway, self._host, self._metrics_host = gateway, listening.host, listening.metrics_host
        http = gateway.settings.http
        self._public = _listen(listening.host, listening.port)
        try:
            self._private = _listen(listening.metrics_host, listening.metrics_port)
        except CannotListen:
            self._public.close()
            raise
        few = http.model_copy(
            update={"max_connections": MAX_CONNECTIONS, "max_connections_per_address": MAX_CONNECTIONS}
        )
        hosts = http.hosts if _is_loopback(listening.metrics_host) else [ANY_HOST]
        refused = gateway.metrics.refused
        self._listeners = (
            _listener(Browser(create_app(gateway), http.hosts, refused=refused), gateway.connections),
            _listener(Browser(Operations(gateway), hosts, refused=refused), Connections(few, gateway.proxies)),
        )
        self._told_to_stop, self._at_once = asyncio.Event(), asyncio.Event()

    @property
    def url(self) -> str:
        return _url(self._host, self._public)

    @property
    def metrics_url(self) -> str:
        return f"{_url(self._metrics_host, self._private)}/metrics"

    def stop(self) -> None:
        """Takes nothing new and ends when nothing is open, or `drain_ms` have passed; told again, at once."""
        if self._told_to_stop.is_set():
            self._at_once.set()
        self._told_to_stop.set()

    async def serve(self, told: Callable[[], None]) -> None:
        """Until it is told to stop; `told` is called once it listens."""
        with self._public, self._private:
            try:
                await self.gateway.start()
                await self._serve(told)
            finally:
                await self.gateway.close()

    async def _serve(self, told: Callable[[], None]) -> None:
        sockets = (self._public, self._private)
        tasks = [
            asyncio.create_task(listener.serve(sockets=[one]))
            for listener, one in zip(self._listeners, sockets, strict=True)
        ]
        for listener in self._listeners:
            await listener.listens.wait()
        told()
        await self._told_to_stop.wait()
        end_s = asyncio.get_running_loop().time() + self.gateway.settings.routing.drain_ms / 1e3
        await self._drain(end_s)
        for listener in self._listeners:
            listener.should_exit = True
        ended = asyncio.gather(*tasks)  # once every client has read what it was answered
        await self._until(ended, end_s + CLOSE_S)
        for listener in self._listeners:
            listener.cut_off()
        await ended

    async def _drain(self, end_s: float) -> None:
        visits = self.gateway.visits
        drained = asyncio.create_task(visits.drain())
        await self._until(drained, end_s)
        drained.cancel()
        if visits.open:
            log.warning("%d requests were open and are ended", visits.open)
        await visits.end(CLOSE_S)

    async def _until(self, done: asyncio.Future[Any], end_s: float) -> None:
        """Or until then, or until it is told to stop a second time."""
        at_once = asyncio.create_task(self._at_once.wait())
        left_s = max(0.0, end_s - asyncio.get_running_loop().time())
        await asyncio.wait((done, at_once), timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        at_once.cancel()


class _Listener(uvicorn.Server):
    """One that leaves signals to the process, and tells when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listens.set()

    def cut_off(self) -> None:
        """Whoever is still there."""
        for connection in tuple(self.server_state.connections):
            connection.transport.abort()
        self.force_exit = True


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


def _listener(app: ASGIApp, connections: Connections) -> _Listener:
    protocol: Any = partial(GatewayProtocol, connections=connections)
    return _Listener(
        uvicorn.Config(
            app,
            http=protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_keep_alive=connections.limits.keep_alive_ms / 1e3,  # type: ignore[arg-type]
        )
    )


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:
        raise CannotListen(
            f"port {port} of {shorten(host)} cannot be had ({error.__class__.__name__}: {shorten(str(error))})",
            fix="give another port or address, or 0 for a free port",
        ) from error


def _url(host: str, listener: socket.socket) -> str:
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{listener.getsockname()[1]}"


def _is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ip_address(host).is_loopback
    return host == "localhost"


def _check_host(host: str, gateway: Gateway) -> None:
    if _is_loopback(host):
        return
    settings = gateway.settings
    if settings.tenants is None:
        raise DeploymentError(
            f"{shorten(host)} can be reached from other machines, and nobody would be asked for a key",
            limit="[gateway] tenants is not set",
            fix="name a file of tenants there, made with `proteus keys new`, or listen on 127.0.0.1",
        )
    if all(_is_loopback(name.strip("[]")) for name in settings.http.hosts):
        log.warning(
            "only names of this machine are in [gateway.http] hosts: whoever asks %s by another is refused", host
        )


def _make_room(http: GatewayHttp) -> None:
    """As many open files as may be; says so when connections do not fit in."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    wanted = http.max_connections + OTHER_FILES
    if hard != resource.RLIM_INFINITY and hard < wanted:
        log.warning(
            "[gateway.http] max_connections = %d needs %d open files and the system gives %d: raise `ulimit -Hn`",
            http.max_connections,
            wanted,
            hard,
        )
