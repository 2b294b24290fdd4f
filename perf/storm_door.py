"""The same storm through the door of a real server: large photographs, several in each request, nothing cached.

    make perf-storm                       # after the engine's own; or: python -m perf.storm_door

Text arrives at random moments, without a storm and with one that keeps some picture requests open, from a process of
its own. Everything shares the cores here: decoding and resizing pictures, the vision encoder, the language model.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import multiprocessing
import os
import random
import statistics
import sys
import time
from dataclasses import asdict
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np
from PIL import Image
from rich.console import Console
from rich.progress import Progress

from perf.arguments import at_least
from perf.records import Record, versions, write
from perf.storm import ANSWER_TOKENS, show
from proteus.client import AsyncClient, Piece
from proteus.deployment import Deployment
from proteus.launcher import Server

DEPLOYMENT = Path("deployments/demo.toml")
TEXTS_PER_S = 5.0
STORM_OPEN = 8
PICTURES = 4  # in a request
PICTURE_PX = (2400, 1600)
WORDS = ("red", "circle", "left", "of", "the", "square", "how", "many", "is", "there", "a", "what", "colour")


def photographs(number: int) -> list[bytes]:
    """JPEG files with some detail; one number more makes others, at the cost of some bytes."""
    rng = np.random.default_rng(number)
    small = rng.integers(0, 256, (PICTURE_PX[1] // 8, PICTURE_PX[0] // 8, 3), dtype=np.uint8)
    files = []
    for _ in range(PICTURES):
        file = io.BytesIO()
        Image.fromarray(small).resize(PICTURE_PX).save(file, "jpeg", quality=85)
        files.append(file.getvalue())
        small = np.roll(small, 7)
    return files


def storm(url: str, stop: Event) -> None:
    """Keeps STORM_OPEN requests open until it is told to end. A comment in each file makes its bytes new.

    Behind everything else in the queue for the cores: real clients bring cores of their own.
    """
    os.nice(19)
    files = photographs(0)

    async def one(client: AsyncClient, number: int) -> None:
        count = 0
        while not stop.is_set():
            count += 1
            mark = f"{number}.{count}.{time.monotonic_ns()}".encode()
            fresh = [file[:2] + b"\xff\xfe" + (len(mark) + 2).to_bytes(2, "big") + mark + file[2:] for file in files]
            await client.ask("What is in the pictures?", fresh, max_tokens=ANSWER_TOKENS, tenant="storm")

    async def run() -> None:
        async with AsyncClient(url) as client:
            await asyncio.gather(*(one(client, number) for number in range(STORM_OPEN)))

    asyncio.run(run())


async def ask_texts(url: str, seconds: float, seed: int) -> list[float]:
    """Seconds to the first piece of each, at random moments (open loop)."""
    rng = random.Random(seed)
    ttfts_s: list[float] = []

    async def one(client: AsyncClient, question: str) -> None:
        sent_s, first = time.perf_counter(), True
        async for item in client.stream(question, max_tokens=ANSWER_TOKENS, tenant="text", cache_scope=question):
            if first and isinstance(item, Piece):
                first = False
                ttfts_s.append(time.perf_counter() - sent_s)

    async with AsyncClient(url) as client, asyncio.TaskGroup() as group:
        await client.ask("warm", max_tokens=1)
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            await asyncio.sleep(rng.expovariate(TEXTS_PER_S))
            group.create_task(one(client, " ".join(rng.choices(WORDS, k=rng.randint(4, 24)))))
    return ttfts_s


def p95_ms(ttfts_s: list[float]) -> float:
    return statistics.quantiles(ttfts_s, n=20)[-1] * 1e3


def measure(url: str, seconds: float, seed: int) -> tuple[float, float]:
    """p95 in ms without a storm and with it."""
    quiet = p95_ms(asyncio.run(ask_texts(url, seconds, seed)))
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    process = context.Process(target=storm, args=(url, stop))
    process.start()
    try:
        time.sleep(5.0)  # until it has imported, made its pictures and filled the server
        stormy = p95_ms(asyncio.run(ask_texts(url, seconds, seed)))
    finally:
        stop.set()
        process.join()
    if process.exitcode:
        raise SystemExit("the storm ended with an error")
    return quiet, stormy


def main() -> int:
    """Starts the demo server, measures, writes perf/results/storm_door.json and prints; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=at_least(1.0), default=15.0, help="of each phase")
    parser.add_argument("--rounds", type=at_least(1), default=3)
    parser.add_argument("--json", action="store_true", help="print the records instead of a table")
    arguments = parser.parse_args()
    rounds = []
    with (
        Server(Deployment.load(DEPLOYMENT), log=Path("var/perf-storm.log")) as server,
        Progress(console=Console(stderr=True)) as progress,
    ):
        for seed in progress.track(range(arguments.rounds), description="storm at the door"):
            rounds.append(measure(server.ports.grpc_url, arguments.seconds, seed))
    quiet, stormy = ([round(value, 2) for value in column] for column in zip(*rounds, strict=True))
    record = Record(
        name="door/text_ttft_p95",
        value=statistics.median(stormy),
        unit="ms",
        baseline=statistics.median(quiet),
        ratio=round(statistics.median(s / q for q, s in rounds), 3),
        runs=stormy,
        command=f"python -m perf.storm_door --seconds {arguments.seconds:g} --rounds {arguments.rounds}",
        versions=versions("pillow", "tritonclient"),
        note=f"whole server; storm: {STORM_OPEN} open requests of {PICTURES} JPEG of {PICTURE_PX[0]} x {PICTURE_PX[1]}",
    )
    write("storm_door", [record])
    print(json.dumps([asdict(record)], indent=2)) if arguments.json else show([record])
    return 0


if __name__ == "__main__":
    sys.exit(main())
