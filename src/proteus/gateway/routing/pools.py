"""The servers of each pool: every address behind their names, looked up again and again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor

from proteus.client.wire import Model
from proteus.gateway.routing.servers import DOORS, ServerFigures, TritonServer
from proteus.limits_gateway import Gateway as Settings
from proteus.limits_gateway import RoutedPool, ServerAddress
from proteus.lookup import addresses

LOOK_UP_S = 5.0  # until a name is looked up again, and how long that may take
LOOKUPS = 4  # at a time

log = logging.getLogger(__name__)


class Pools:
    """For one event loop, of the pools with one of `doors`. A server that is in several pools is one."""

    def __init__(self, settings: Settings, doors: Collection[Model]) -> None:
        self._routing = settings.routing
        light = () if settings.light is None else settings.light.servers
        named: tuple[tuple[RoutedPool, list[ServerAddress]], ...] = (*settings.pools.named(), ("light", list(light)))
        self._places = [(pool, server) for pool, servers in named if DOORS[pool] in doors for server in servers]
        self._behind: dict[str, frozenset[str]] = {}  # name -> addresses, as they were found last
        self._lost: set[str] = set()  # names that were not found
        self._servers: dict[str, TritonServer] = {}
        self._retiring: dict[asyncio.Task[None], TritonServer] = {}
        self._following: asyncio.Task[None] | None = None
        self._threads = ThreadPoolExecutor(LOOKUPS, thread_name_prefix="proteus-lookup")

    async def start(self) -> None:
        """Ends when each server that is found was asked once whether it is ready."""
        await self._look_up()
        self._following = asyncio.create_task(self._follow())

    async def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
        for retiring in self._retiring:
            retiring.cancel()
        await asyncio.gather(*(server.close() for server in list(self._all())))
        self._threads.shutdown(wait=False, cancel_futures=True)

    def of(self, pool: RoutedPool) -> Iterator[TritonServer]:
        """Those that are up."""
        return (server for server in self._servers.values() if pool in server.pools and server.up)

    def figures(self) -> Iterator[ServerFigures]:
        """Of those that are gone too, while they have something to end."""
        for server in self._all():
            yield from server.figures()

    def retries(self) -> dict[str, int]:
        """By server that failed one."""
        return {server.address: server.retries for server in self._all() if server.retries}

    def _all(self) -> Iterator[TritonServer]:
        yield from self._servers.values()
        yield from self._retiring.values()

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(LOOK_UP_S)
            try:
                await self._look_up()
            except Exception:
                log.exception("the names of servers could not be looked up")

    async def _look_up(self) -> None:
        names = {host_of(server.grpc) for _, server in self._places}
        await asyncio.gather(*(self._find(name) for name in sorted(names)))
        new = self._settle()
        await asyncio.gather(*(server.look() for server in new))
        for server in new:
            server.watch()

    async def _find(self, name: str) -> None:
        """What is not found now is as it was."""
        try:
            async with asyncio.timeout(LOOK_UP_S):
                self._behind[name] = await addresses(name, self._threads)
            self._lost.discard(name)
        except (OSError, TimeoutError, UnicodeError) as error:  # the last of what is no name
            if name not in self._lost:
                log.warning("servers at %s are not found: %r", name, error)
            self._lost.add(name)

    def _settle(self) -> list[TritonServer]:
        """Servers that were not there before; those that are gone get nothing new and end what they have."""
        wanted = self._wanted()
        for address in self._servers.keys() - wanted.keys():
            self._retire(self._servers.pop(address))
        new = []
        for address, (health, pools) in wanted.items():
            server = self._servers.get(address) or self._taken_back(address)
            if server is None:
                server = TritonServer(address, health, self._routing)
                new.append(server)
            server.pools = pools
            self._servers[address] = server
        return new

    def _wanted(self) -> dict[str, tuple[str | None, frozenset[RoutedPool]]]:
        """By address: where its health is asked for, and its pools."""
        wanted: dict[str, tuple[str | None, frozenset[RoutedPool]]] = {}
        for pool, server in self._places:
            for host in sorted(self._behind.get(host_of(server.grpc), ())):
                address = f"{host}:{port_of(server.grpc)}"
                health, pools = wanted.get(address, (None, frozenset()))
                wanted[address] = health or _health(server, host), pools | {pool}
        return wanted

    def _taken_back(self, address: str) -> TritonServer | None:
        """That is there again before it has ended what it had."""
        for retiring, server in self._retiring.items():
            if server.address == address and server.is_open:
                retiring.cancel()
                del self._retiring[retiring]
                return server
        return None

    def _retire(self, server: TritonServer) -> None:
        retiring = asyncio.create_task(server.retire())
        self._retiring[retiring] = server
        retiring.add_done_callback(lambda done: self._retiring.pop(done, None))


def host_of(address: str) -> str:
    return address.rpartition(":")[0]


def port_of(address: str) -> str:
    return address.rpartition(":")[2]


def _health(server: ServerAddress, host: str) -> str | None:
    """At the server's own address, where the names are one: each of those behind it has its own."""
    if server.health is None or host_of(server.health) != host_of(server.grpc):
        return server.health
    return f"{host}:{port_of(server.health)}"
