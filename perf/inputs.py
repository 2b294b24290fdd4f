"""Input data for anyone's perf_analyzer: a file for each Triton model of a deployment, and the command that reads it.

    python -m perf.inputs --out FOLDER [--deployment FILE] [--models NAME …] [--requests 64] [--apart] [--url HOST:PORT]

All buckets of a model are in FOLDER/<model>.json by turns, or with --apart each in its own file. Files of two runs
share no cache entry. docs/perf_analyzer.md tells how to read what perf_analyzer then prints.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.progress import track

from perf import input_drawing, input_reading
from perf.analyzer import command
from perf.arguments import at_least
from perf.input_data import Load, Tensors, write
from proteus.configs import read_exports
from proteus.deployment import Deployment
from proteus.errors import ProteusError

DEPLOYMENT = Path("deployments/demo.toml")
URL = "localhost:8001"
CONCURRENCY = 4


def loads_of(deployment: Deployment) -> list[Load]:
    """Those of all models that it serves, model by model."""
    exports, salt = read_exports(deployment), secrets.token_hex(8)
    found: list[Load] = []
    if exports.reads is not None:
        found += input_reading.loads(deployment, exports.reads, salt)
    if exports.draws is not None:
        found += input_drawing.loads(deployment.drawing, exports.draws, salt)
    return found


def chosen(loads: Iterable[Load], models: Sequence[str]) -> list[Load]:
    """Of the models named, or all; raises SystemExit for one that is not there."""
    found = list(loads)
    known = dict.fromkeys(load.model for load in found)
    if unknown := [name for name in models if name not in known]:
        raise SystemExit(f"no model {', '.join(unknown)} in the deployment; there are {', '.join(known)}")
    return [load for load in found if not models or load.model in models]


def by_turns(loads: Sequence[Load], num_requests: int) -> Iterator[Tensors]:
    """The first request of the first bucket, the second of the second …"""
    return (loads[number % len(loads)].request(number) for number in range(num_requests))


def _groups(loads: Sequence[Load], *, apart: bool) -> Iterator[tuple[str, Sequence[Load]]]:
    """What goes into each file, by its name."""
    for model, group in groupby(loads, key=lambda load: load.model):
        own = list(group)
        if apart:
            yield from ((f"{model}-{load.bucket.replace(' ', '_')}", [load]) for load in own)
        else:
            yield model, own


def main() -> int:
    """Writes the files and prints the commands; the exit status for the shell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--deployment", type=Path, default=DEPLOYMENT)
    parser.add_argument("--models", nargs="+", default=[])
    parser.add_argument("--requests", type=at_least(1), default=64, help="in each file")
    parser.add_argument("--apart", action="store_true", help="a file for each bucket: <model>-<bucket>.json")
    parser.add_argument("--url", default=URL, help="of the server's gRPC port, in the commands")
    arguments = parser.parse_args()
    try:
        loads = chosen(loads_of(Deployment.load(arguments.deployment)), arguments.models)
        arguments.out.mkdir(parents=True, exist_ok=True)
    except (ProteusError, OSError) as failure:
        print(failure, file=sys.stderr)
        return 1
    groups = list(_groups(loads, apart=arguments.apart))
    for name, own in track(groups, "inputs", console=Console(stderr=True)):
        file = arguments.out / f"{name}.json"
        write(file, by_turns(own, arguments.requests))
        once = ["--request-count", str(arguments.requests)] if any(load.cached for load in own) else []
        options = ["-b", "1", "--concurrency-range", str(CONCURRENCY), *once]
        print(" ".join(command(own[0].spec, arguments.url, file, *options)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
