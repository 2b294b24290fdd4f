"""How long texts wait behind other people's pictures, by the rule that chooses a server.

    python -m perf.routing [--requests 100000]

The orders are real: planned by the gateway, so their vectors are exact, and sent once by one to a real server, which
tells how much work each is. The fleet is simulated: a server does all that it has at once, each at its share of the
speed, which is what cores do. All rules see the same requests at the same moments. `no room` counts orders that come to
a server whose ledger cannot hold them now, while that of another could: they would wait there for nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import heapq
import io
import itertools
import json
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table

from perf.arguments import at_least
from perf.records import Record, write
from proteus.deployment import Deployment
from proteus.door.draw_request import DrawRequest
from proteus.door.request import ChatRequest
from proteus.door.seats import Seats
from proteus.gateway.order import Order, Tenant, Visit
from proteus.gateway.planning.artist import Artist
from proteus.gateway.planning.reader import Reader
from proteus.gateway.routing.router import Capacities, Router, capacities_of, cost_of
from proteus.gateway.routing.servers import WHOLE
from proteus.launcher import Server
from proteus.limits_gateway import ServerAddress

DEPLOYMENT = Path("deployments/demo.toml")
SERVERS, LOADS = 4, (0.5, 0.85)  # part of its time that a server has something to do
ROUNDS = 5  # of each kind; the least time counts, for other programs may run on the machine
COMMAND = "python -m perf.routing"


Documents = Callable[[random.Random], dict[str, Any]]


def text(tokens: int) -> Documents:
    return lambda chance: _chat([{"type": "text", "text": f"Count to {chance.random()}."}], tokens)


def pictures(count: int, size: tuple[int, int], tokens: int) -> Documents:
    """New ones each time: no cache has them."""
    return lambda chance: _chat([_picture(chance, size) for _ in range(count)], tokens)


def drawings(**options: Any) -> Documents:
    return lambda chance: {"prompt": "a red circle", "seed": chance.randrange(2**31), **options}


KINDS: Mapping[str, Documents] = {
    "text, 12 tokens": text(12),
    "text, 160 tokens": text(160),
    "picture of 1 MP": pictures(1, (1280, 800), 24),
    "four of 12 MP": pictures(4, (4000, 3000), 24),
    "drawing, 20 steps": drawings(steps=20, size="64x64"),
    "eight of 100 steps": drawings(steps=100, size="96x96", n=8),
}
MIXES: Mapping[str, Sequence[float]] = {  # in the order of KINDS
    "mostly text": (0.55, 0.25, 0.12, 0.04, 0.03, 0.01),
    "many pictures": (0.35, 0.15, 0.25, 0.25, 0.0, 0.0),
}


@dataclass(frozen=True, slots=True)
class Job:
    kind: str
    cost: int
    parts: Mapping[str, float]  # of a server, by resource
    work_s: float


@dataclass(slots=True)
class SimulatedServer:
    """Processor sharing by virtual time: each of k jobs gets a k-th of the speed."""

    now_s: float = 0.0
    virtual_s: float = 0.0
    cost: int = 0
    turn: int = 0
    held: Counter[str] = field(default_factory=Counter)
    open: list[tuple[float, float, int, Job]] = field(default_factory=list)  # virtual end, arrival, number, job

    def advance(self, to_s: float) -> list[tuple[float, Job]]:
        """Latencies of those that end up to then."""
        ended = []
        while self.open:
            end_s = self.now_s + (self.open[0][0] - self.virtual_s) * len(self.open)
            if end_s > to_s:
                break
            self.virtual_s, arrived_s, _, job = heapq.heappop(self.open)
            self.now_s = end_s
            self.cost -= job.cost
            self.held.subtract(job.parts)
            ended.append((end_s - arrived_s, job))
        if self.open:
            self.virtual_s += (to_s - self.now_s) / len(self.open)
        self.now_s = to_s
        return ended

    def add(self, job: Job) -> None:
        heapq.heappush(self.open, (self.virtual_s + job.work_s, self.now_s, self.turn, job))
        self.cost += job.cost
        self.held.update(job.parts)

    def has_room(self, job: Job) -> bool:
        return all(self.held[name] + part <= 1 for name, part in job.parts.items())


RULES: Mapping[str, Callable[[SimulatedServer], Any]] = {
    "round robin": lambda server: server.turn,
    "least count": lambda server: (len(server.open), server.turn),
    "least cost": lambda server: (server.cost, len(server.open), server.turn),
}


def _chat(parts: list[dict[str, Any]], tokens: int) -> dict[str, Any]:
    content = [*parts, {"type": "text", "text": "What is this?"}]
    limits = {"max_tokens": tokens, "min_tokens": tokens}
    return {"messages": [{"role": "user", "content": content}], **limits}


def _picture(chance: random.Random, size: tuple[int, int]) -> dict[str, Any]:
    small = np.random.default_rng(chance.randrange(2**31)).integers(0, 256, (24, 32, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(small).resize(size).save(file, "JPEG")
    url = f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


async def measured(deployment: Deployment) -> dict[str, Job]:
    """Every kind: planned by the gateway, sent to a real server that has nothing else to do."""
    settings = deployment.gateway
    if settings is None:
        raise SystemExit(f"{deployment.path} has no [gateway]")
    reader, artist = Reader(deployment, settings.prices), Artist(deployment, settings.prices, name="draw")
    seats = Seats(max_requests=1, max_bytes=2**30, table="gateway.queue")
    capacities, jobs, chance = capacities_of(deployment), {}, random.Random(0)
    with Server(deployment) as server:
        places = [ServerAddress(grpc=server.ports.grpc_url, health=None)]
        pools = type(settings.pools)(text=places, picture=places, draw=places)
        router = Router(deployment, settings.model_copy(update={"pools": pools}))
        await router.start()
        try:
            for name, documents in KINDS.items():
                times_s = []
                for _ in range(ROUNDS):
                    visit = Visit(path="", address="", tenant=Tenant(name="perf", cache_scope="perf"))
                    with seats.take(0) as seat:
                        order = await _order(reader, artist, visit, documents(chance), seat)
                    begun_s = time.perf_counter()
                    async for _message in router.messages(visit, order):
                        pass
                    times_s.append(time.perf_counter() - begun_s)
                cost, parts = cost_of(order.resources, capacities[order.door]), parts_of(order, capacities)
                jobs[name] = Job(name, cost, parts, min(times_s))
        finally:
            await router.close()
    return jobs


async def _order(reader: Reader, artist: Artist, visit: Visit, document: dict[str, Any], seat: Any) -> Order:
    raw = json.dumps(document).encode()
    if "prompt" in document:
        return artist.plan(visit, DrawRequest.parse(raw, artist.limits)).order(visit)
    return (await reader.plan(visit, ChatRequest.parse(raw, reader.limits.text), seat)).order(visit)


def parts_of(order: Order, capacities: Capacities) -> dict[str, float]:
    named = capacities[order.door].named()
    parts = {f"{order.door} {name}": getattr(order.resources, name) / limit for name, limit in named}
    return {name: part for name, part in parts.items() if part}


@dataclass(slots=True)
class Seen:
    latencies_s: dict[str, list[float]]  # by kind
    no_room: int = 0


def simulated(jobs: Mapping[str, Job], mix: str, load: float, rule: str, count: int) -> Seen:
    """The same requests at the same moments for every rule."""
    chance, names, shares = random.Random(f"{mix} {load}"), list(jobs), MIXES[mix]
    mean_work_s = sum(share * jobs[name].work_s for name, share in zip(names, shares, strict=True))
    servers, seen = [SimulatedServer() for _ in range(SERVERS)], Seen({name: [] for name in names})
    now_s = 0.0
    for turn in range(count):
        now_s += chance.expovariate(load * SERVERS / mean_work_s)
        job = jobs[chance.choices(names, shares)[0]]
        for server in servers:
            for latency_s, ended in server.advance(now_s):
                seen.latencies_s[ended.kind].append(latency_s)
        chosen = min(servers, key=RULES[rule])
        seen.no_room += not chosen.has_room(job) and any(server.has_room(job) for server in servers)
        chosen.turn = turn + 1
        chosen.add(job)
    return seen


def figures(seen: Seen) -> dict[str, float]:
    """In ms, and in parts of a thousand."""
    texts = [one for name, several in seen.latencies_s.items() if name.startswith("text") for one in several]
    everything = [one for several in seen.latencies_s.values() for one in several]
    return {
        **{f"texts p{percent}": percentile_ms(texts, percent) for percent in (50, 95, 99)},
        "large pictures p95": percentile_ms(seen.latencies_s["four of 12 MP"], 95),
        "mean": statistics.fmean(everything) * 1e3,
        "no room": seen.no_room / len(everything) * 1e3,
    }


def percentile_ms(latencies_s: Sequence[float], percent: int) -> float:
    return statistics.quantiles(latencies_s, n=100)[percent - 1] * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=at_least(1000), default=100_000)
    given = parser.parse_args()
    jobs = asyncio.run(measured(Deployment.load(DEPLOYMENT)))
    console = Console(width=120)
    orders = Table("order", "part of a server", "alone, ms")
    for job in jobs.values():
        orders.add_row(job.kind, f"{job.cost / WHOLE:.4f}", f"{job.work_s * 1e3:.1f}")
    console.print(orders)
    records = [
        Record(name=f"order/{job.kind}", value=job.work_s * 1e3, unit="ms", command=COMMAND) for job in jobs.values()
    ]
    table = Table(
        "mix", "load", "rule", "texts p50, ms", "p95", "p99", "large pictures p95", "mean", "no room, of 1,000"
    )
    for mix, load in itertools.product(MIXES, LOADS):
        baseline: dict[str, float] = {}
        for rule in RULES:
            found = figures(simulated(jobs, mix, load, rule, given.requests))
            baseline = baseline or found
            table.add_row(mix, f"{load:.0%}", rule, *(f"{value:.1f}" for value in found.values()))
            for name, value in found.items():
                records.append(
                    Record(
                        name=f"{mix}/{load}/{rule}/{name}",
                        value=value,
                        unit="of 1,000" if name == "no room" else "ms",
                        baseline=baseline[name],
                        command=COMMAND,
                        note="simulated; compared to round robin",
                    )
                )
    console.print(table)
    write("routing", records)


if __name__ == "__main__":
    main()
