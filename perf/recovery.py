"""How long service is away after `kill -9` of a backend stub: death to the first answer of a request sent since.

    python -m perf.recovery [--rounds 3] [--clients 8] [--out perf/results/recovery.json]

Each model's stub is killed in turn, under load. Seconds; the median and the worst of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import threading
import time
from pathlib import Path

from rich.progress import track

import proteus
from proteus.client import Client, ClientError
from proteus.launcher import Server

DEPLOYMENT = Path("deployments/demo.toml")
PICTURE = Path("client/pictures/shapes.png")
MODELS = ("chat", "llm", "image_preprocess", "vision_encoder", "connector")
QUESTION = "Describe the picture."


def _ask(client: Client) -> bool:
    try:
        client.ask(QUESTION, PICTURE, max_tokens=32, timeout_s=20)
    except ClientError:
        time.sleep(0.05)
        return False
    return True


def measure(server: Server, client: Client, model: str) -> float:
    """Seconds from the death of `model`'s stub to the first answer."""
    os.kill(server.stub_pids()[model][0], signal.SIGKILL)
    killed = time.monotonic()
    time.sleep(0.2)  # an answer that was under way at the death does not count
    while not _ask(client):
        pass
    seconds = time.monotonic() - killed
    server.wait_until_ready(60)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m perf.recovery", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("perf/results/recovery.json"))
    arguments = parser.parse_args()

    done = threading.Event()
    seconds: dict[str, list[float]] = {model: [] for model in MODELS}
    with Server(DEPLOYMENT) as server, Client(server.ports.grpc_url) as client:

        def load() -> None:
            while not done.is_set():
                _ask(client)

        threads = [threading.Thread(target=load) for _ in range(arguments.clients)]
        for thread in threads:
            thread.start()
        kills = [model for _ in range(arguments.rounds) for model in MODELS]
        try:
            for model in track(kills, description="killing stubs"):
                time.sleep(13)  # the launcher gives up on a fleet that dies more than five times a minute
                seconds[model].append(round(measure(server, client, model), 2))
        finally:
            done.set()
            for thread in threads:
                thread.join()

    every = [value for values in seconds.values() for value in values]
    report = {
        "command": f"python -m perf.recovery --rounds {arguments.rounds} --clients {arguments.clients}",
        "versions": {"proteus": proteus.__version__, "python": platform.python_version()},
        "cores": os.cpu_count(),
        "seconds": seconds,
        "median_s": statistics.median(every),
        "worst_s": max(every),
    }
    arguments.out.write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
