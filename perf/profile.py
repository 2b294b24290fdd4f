"""perf_analyzer, the real one, on every Triton model of the demo: sizes of what is asked, and how much at once.

    make perf      # or: python -m perf.profile [--models NAME …] [--quick] [--json]

No answer comes from a cache. Writes perf/results/analyzer.json, docs/plots/analyzer.png and the table of
docs/perf_analyzer.md; with --models or --quick it only prints.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from tritonclient.grpc import InferenceServerClient

from perf import profile_page
from perf.analyzer import REQUIREMENT, WINDOWS, Analyzer, Measured, WindowTooShort
from perf.input_data import Load, write
from perf.inputs import chosen, loads_of
from perf.profile_page import COLUMNS, Row, cells
from perf.records import RESULTS, commit, versions
from proteus.deployment import Deployment
from proteus.errors import ProteusError
from proteus.launcher import Server

DEPLOYMENT = Path("deployments/demo.toml")
CONCURRENCIES = (1, 2, 4, 8, 16)
FEW = (1, 4, 16)
SLOW_PER_S = 8.0  # a load that is slower, one by one, is measured at FEW
WINDOW_MS, WARM_UP_MS = 600, 200
NUM_UNCACHED = 16  # different requests, where no cache would tell
STARTING_REQUESTS = 64
MAX_DOUBLINGS = 5  # of a window in which nothing ended
SPARE = 1.6  # of the requests that are expected: a file that ends begins again, and caches would answer
OUTSIDE_S = 1.0  # requests are sent before the first window and after the last one


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A running server, and numbers that no request had yet."""

    analyzer: Analyzer
    url: str
    client: InferenceServerClient
    folder: Path
    numbers: count[int] = field(default_factory=count)

    def measure(self, load: Load, concurrency: int, *, window_ms: int, per_s: float | None) -> Measured:
        """`per_s`, where known, is how many requests a second to be ready for."""
        for own_ms in (window_ms * 2**longer for longer in range(MAX_DOUBLINGS)):
            try:
                return self._measure(load, concurrency, own_ms, per_s)
            except WindowTooShort:
                continue
        return self._measure(load, concurrency, window_ms * 2**MAX_DOUBLINGS, per_s)

    def _measure(self, load: Load, concurrency: int, window_ms: int, per_s: float | None) -> Measured:
        seconds = WINDOWS * window_ms / 1e3 + OUTSIDE_S
        requests = STARTING_REQUESTS if per_s is None else math.ceil(SPARE * per_s * seconds)
        while True:
            requests = requests + 2 * concurrency if load.cached else NUM_UNCACHED
            file = self.folder / f"{load.model}.json"
            write(file, (load.request(next(self.numbers)) for _ in range(requests)))
            before = self._num_answered(load)
            found = self.analyzer.measure(load.spec, self.url, file, concurrency=concurrency, window_ms=window_ms)
            answered = self._num_answered(load) - before
            if not load.cached or answered <= requests:
                return found
            requests = math.ceil(SPARE * answered)

    def _num_answered(self, load: Load) -> int:
        (statistics,) = self.client.get_inference_statistics(load.model).model_stats
        return int(statistics.inference_stats.success.count)


def sweep(bench: Bench, load: Load, concurrencies: Sequence[int], window_ms: int, progress: Progress) -> list[Row]:
    """Each concurrency after the other; windows are as long as all that is open takes, but no shorter than given."""
    task = progress.add_task(f"{load.model}, {load.bucket}", total=len(concurrencies))
    per_s, before = bench.measure(load, 1, window_ms=WARM_UP_MS, per_s=None).per_s, 1
    if per_s < SLOW_PER_S:
        concurrencies = [one for one in concurrencies if one in FEW]
        progress.update(task, total=len(concurrencies))
    rows = []
    for concurrency in concurrencies:
        own_ms = max(window_ms, math.ceil(1e3 * concurrency / per_s))
        found = bench.measure(load, concurrency, window_ms=own_ms, per_s=per_s * concurrency / before)
        per_s, before = found.per_s, concurrency
        rows.append(Row(load.model, load.bucket, concurrency, found))
        progress.advance(task)
    progress.remove_task(task)
    return rows


def profile(loads: Sequence[Load], concurrencies: Sequence[int], window_ms: int) -> list[Row]:
    """Starts the demo's server and asks it everything."""
    analyzer = Analyzer.install(Path("var/perf_analyzer"))
    with (
        tempfile.TemporaryDirectory() as folder,
        Server(DEPLOYMENT, log=Path("var/perf-profile.log"), show_progress=True) as server,
        InferenceServerClient(server.ports.grpc_url) as client,
        Progress(console=Console(stderr=True)) as progress,
    ):
        bench = Bench(analyzer=analyzer, url=server.ports.grpc_url, client=client, folder=Path(folder))
        rows: list[Row] = []
        for load in progress.track(loads, description="profile"):
            rows += sweep(bench, load, concurrencies, window_ms, progress)
        return rows


def first_of_each_model(loads: Sequence[Load]) -> list[Load]:
    return list({load.model: load for load in reversed(loads)}.values())[::-1]


def main() -> int:
    """Measures, writes and prints; the exit status for the shell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=[])
    parser.add_argument("--quick", action="store_true", help="one bucket of each model, 1 and 4 at once")
    parser.add_argument("--json", action="store_true", help="print the rows instead of a table")
    arguments = parser.parse_args()
    try:
        loads = chosen(loads_of(Deployment.load(DEPLOYMENT)), arguments.models)
        if arguments.quick:
            rows = profile(first_of_each_model(loads), (1, 4), WINDOW_MS // 2)
        else:
            rows = profile(loads, CONCURRENCIES, WINDOW_MS)
    except ProteusError as failure:
        print(failure, file=sys.stderr)
        return 1
    if not arguments.models and not arguments.quick:
        write_results(rows)
        profile_page.write_pages()
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return 0
    table = Table(*COLUMNS)
    for row in rows:
        table.add_row(*cells(row))
    Console().print(table)
    return 0


def write_results(rows: Sequence[Row]) -> None:
    told = {
        "command": "python -m perf.profile",
        "versions": {**versions("nvidia-pytriton"), "perf_analyzer": REQUIREMENT.rpartition("==")[2]},
        "commit": commit(),
        "note": f"{WINDOWS} windows of {WINDOW_MS} ms at least, after a warm-up; nothing answered by a cache",
        "rows": [asdict(row) for row in rows],
    }
    (RESULTS / "analyzer.json").write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
