"""What is kept on purpose, in place before a soak compares: full caches, and room for the largest that will come."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Sequence
from contextlib import suppress

from perf.raw_request import send
from perf.soak_bad import BAD
from perf.soak_books import CACHES, cache_bytes, read
from perf.soak_kinds import PATIENCE_S
from perf.soak_pictures import Stock
from perf.soak_run import CLIENTS
from proteus.client import AsyncClient, DrawOptions, Options, ServerError
from proteus.deployment import Deployment
from proteus.launcher import Server
from proteus.manifest import DrawManifest

FULL = 0.9  # of a cache's bytes
ASKS, ROUNDS, PICTURES = 100, 40, 4
LARGEST_AT_ONCE = 6  # of 16 clients: more will hardly come together
LARGEST_TIMES = 4
SETTLED_S = 3.0
FLOAT_BYTES = 4
TEXTS = 2  # that a drawing with guidance encodes


async def fill(server: Server, stock: Stock, deployment: Deployment) -> int:
    """Let some clients send the largest at once, then fill every cache; the requests it took."""
    async with AsyncClient(server.ports.grpc_url) as client:
        took = await _largest_at_once(client, stock)
        took += await _fill_drawings(client, deployment)
        for turn in range(ROUNDS):
            if _are_full(server):
                return took
            wanted = [[stock.tiny() for _ in range(PICTURES)] for _ in range(ASKS)]
            await _ask_all(client, wanted, f"fill {turn}")
            took += ASKS
    return took


async def settle(server: Server, stock: Stock | None) -> None:
    """Show the largest pictures: a decoder keeps memory from picture to picture, after the same ones as much."""
    if stock is not None:
        largest = [[picture] for _ in range(LARGEST_TIMES) for picture in stock.every_large()]
        async with AsyncClient(server.ports.grpc_url) as client:
            await _ask_all(client, largest, "large")
    await asyncio.sleep(SETTLED_S)


async def _largest_at_once(client: AsyncClient, stock: Stock) -> int:
    """Shared memory holds all that is on its way, and never shrinks: now as much as can be in a soak."""

    async def refused() -> None:
        with suppress(ServerError):
            await send(client.url, BAD["too many bytes"].make(stock, random.Random(0)), PATIENCE_S)

    await asyncio.gather(*(refused() for _ in range(LARGEST_AT_ONCE)))
    await _ask_all(client, [stock.every_large()[:PICTURES] for _ in range(LARGEST_AT_ONCE)], "largest")
    return 2 * LARGEST_AT_ONCE


async def _fill_drawings(client: AsyncClient, deployment: Deployment) -> int:
    """Triton's response cache does not tell what it holds, but the size of an entry is known."""
    manifest = DrawManifest.load(deployment.repository_path)
    entry_bytes = manifest.text_tokens * manifest.text_width * FLOAT_BYTES
    number = deployment.cache.response_cache_bytes // (entry_bytes * TEXTS) + 1
    options: DrawOptions = {"steps": 1, "preview_every": 1, "preview_by": "decoder", "timeout_s": PATIENCE_S}
    scopes: list[DrawOptions] = [{**options, "cache_scope": f"fill {one}"} for one in range(number)]
    await _some_at_a_time([client.draw("a red circle", **scope) for scope in scopes])
    return number


async def _ask_all(client: AsyncClient, wanted: Sequence[Sequence[bytes]], question: str) -> None:
    """One request for each list of pictures."""
    options: Options = {"max_tokens": 1, "cache_scope": "fill", "timeout_s": PATIENCE_S}
    await _some_at_a_time([client.ask(question, pictures, **options) for pictures in wanted])


async def _some_at_a_time(asked: Sequence[Awaitable[object]]) -> None:
    gate = asyncio.Semaphore(CLIENTS)

    async def one(request: Awaitable[object]) -> None:
        async with gate:
            await request

    await asyncio.gather(*map(one, asked))


def _are_full(server: Server) -> bool:
    now = read(server)
    return all(held >= FULL * most for held, most in (cache_bytes(now, cache) for cache in CACHES))
