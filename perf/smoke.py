"""`make perf-smoke`: perf_analyzer against `image_tokens` and `chat` of the demo, with real pictures.

A short look that everything can be measured, not a benchmark: one window each, on a machine that may be busy.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from perf import pictures
from perf.analyzer import Analyzer
from proteus.deployment import Deployment
from proteus.errors import ProteusError
from proteus.launcher import Server

DEPLOYMENT = Path("deployments/demo.toml")
NUM_PICTURES = 64
IMAGE_REQUESTS = 1000
CHAT_REQUESTS = 150
MAX_TOKENS = 16
CONCURRENCY = 4


def main() -> int:
    """Starts the demo server, measures both models and prints the tables; the exit status for the shell."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    try:
        analyzer = Analyzer.install(Path("var/perf_analyzer"))
        with (
            tempfile.TemporaryDirectory() as folder,
            Server(DEPLOYMENT, log=Path("var/perf-smoke.log"), show_progress=True) as server,
        ):
            measure(analyzer, server.ports.grpc_url, Path(folder), Deployment.load(DEPLOYMENT))
    except ProteusError as failure:
        print(failure, file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as failure:
        print(f"{Path(failure.cmd[0]).name} ended with status {failure.returncode}", file=sys.stderr)
        return 1
    return 0


def measure(analyzer: Analyzer, url: str, folder: Path, deployment: Deployment) -> None:
    """Prints one table for each model; the input data goes to `folder`."""
    asked = pictures.held_out(deployment, NUM_PICTURES)
    load = ["--concurrency-range", str(CONCURRENCY), "--async"]

    print(f"\nimage_tokens: {CONCURRENCY} at once, {IMAGE_REQUESTS} requests, none from the cache", flush=True)
    data = folder / "image_tokens.json"
    pictures.write_image_tokens(data, asked, num_requests=IMAGE_REQUESTS)
    analyzer.run("image_tokens", url, data, *load, "--request-count", str(IMAGE_REQUESTS))

    most = pictures.most_pictures(deployment)
    load_line = f"{CONCURRENCY} at once, {CHAT_REQUESTS} requests, 1 to {most} pictures, {MAX_TOKENS} tokens at most"
    print(f"\nchat: {load_line}", flush=True)
    data = folder / "chat.json"
    pictures.write_chat(data, asked, most=most, max_tokens=MAX_TOKENS)
    analyzer.run("chat", url, data, *load, "--streaming", "--request-count", str(CHAT_REQUESTS))


if __name__ == "__main__":
    sys.exit(main())
