"""The real perf_analyzer, from the last client wheel whose copy runs on glibc 2.36."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from proteus.contract import ModelSpec
from proteus.launcher.failure import LaunchFailed
from proteus.launcher.installation import Installation

REQUIREMENT = "tritonclient==2.51.0"
# Name it asks the loader for -> the copy that comes with the server's wheel.
LIBRARIES = {"libb64.so.0d": "libb64-*.so.0d", "libcudart.so.12": "libcudart-*.so.12*"}
WINDOWS = 3  # fewer are never stable, and what is not stable is not reported
# One series of windows each, whatever it shows: it would measure ten times over on a machine that others use.
ONE_SERIES = ("--max-trials", str(WINDOWS), "--stability-percentage", "1000000")
TIMEOUT_S = 300.0
COMPUTE = ("Server Compute Input", "Server Compute Infer", "Server Compute Output")
NOTHING_ENDED = "No valid requests recorded"
REQUESTS = re.compile(r"Request count: (\d+)")
STEPS, STEP_QUEUE = "Composing models:", re.compile(r"queue (\d+) usec")  # of an ensemble, whose table has no queue


class WindowTooShort(LaunchFailed):
    """No request ended inside a window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What perf_analyzer tells of one concurrency. Latencies of a decoupled model are those of the first response."""

    requests: int  # that ended inside the windows
    per_s: float
    responses_per_s: float | None  # decoupled only
    p50_ms: float
    p95_ms: float
    p99_ms: float
    queue_ms: float | None  # mean; None where Triton knows only the call that takes the request in
    compute_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Analyzer:
    """An installed perf_analyzer."""

    program: Path
    libraries: Path

    @staticmethod
    def install(folder: Path) -> Analyzer:
        """Unpacks it into `folder`, apart from the environment, whose own client library is newer; once."""
        analyzer = Analyzer(program=folder / "client" / "bin" / "perf_analyzer", libraries=folder / "libraries")
        if not analyzer.program.is_file():
            options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:", "--no-compile"]
            target = ["--target", str(folder / "client")]
            subprocess.run([sys.executable, "-m", "pip", "install", *options, *target, REQUIREMENT], check=True)
        analyzer.libraries.mkdir(parents=True, exist_ok=True)
        for name, pattern in LIBRARIES.items():
            link = analyzer.libraries / name
            link.unlink(missing_ok=True)
            link.symlink_to(_only(Installation.find().libraries, pattern))
        return analyzer

    def measure(self, spec: ModelSpec, url: str, input_data: Path, *, concurrency: int, window_ms: int) -> Measured:
        """`WINDOWS` windows with so many requests open at any time; raises LaunchFailed and WindowTooShort."""
        with tempfile.TemporaryDirectory() as folder:
            table = Path(folder) / "measured.csv"
            load = ["--concurrency-range", str(concurrency), "--measurement-interval", str(window_ms)]
            said = self._run(command(spec, url, input_data, *load, *ONE_SERIES, "-f", str(table), "--verbose-csv"))
            (row,) = csv.DictReader(table.read_text().splitlines())
        return measured(row, said, decoupled=spec.decoupled)

    def _run(self, words: list[str]) -> str:
        environment = {**os.environ, "LD_LIBRARY_PATH": str(self.libraries)}
        try:
            done = subprocess.run(
                [str(self.program), *words[1:]], env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            raise LaunchFailed(f"perf_analyzer did not end within {TIMEOUT_S:g} s: {' '.join(words)}") from None
        if done.returncode != 0:
            last = " ".join((done.stderr or done.stdout).strip().splitlines()[-3:])
            kind = WindowTooShort if NOTHING_ENDED in last else LaunchFailed
            raise kind(f"perf_analyzer ended with status {done.returncode}: {last}")
        return done.stdout


def command(spec: ModelSpec, url: str, input_data: Path, *options: str) -> list[str]:
    """The words that ask perf_analyzer to load `spec` over gRPC; every tensor in the file tells its own shape."""
    streaming = ["--streaming"] if spec.decoupled else []
    words = ["perf_analyzer", "-m", spec.name, "-u", url, "-i", "grpc", "--async", *streaming]
    return [*words, "--input-data", str(input_data), *options]


def measured(row: Mapping[str, str], said: str, *, decoupled: bool) -> Measured:
    """From the row of its CSV, in µs, and from what it printed."""
    count = REQUESTS.search(said)
    if count is None:
        raise LaunchFailed("perf_analyzer printed no request count")

    def ms(*names: str) -> float:
        return round(sum(float(row[name]) for name in names) / 1e3, 3)

    queue_ms = ms("Server Queue")
    if STEPS in said:
        queue_ms = round(sum(map(int, STEP_QUEUE.findall(said.partition(STEPS)[2]))) / 1e3, 3)
    return Measured(
        requests=int(count[1]),
        per_s=float(row["Inferences/Second"]),
        responses_per_s=float(row["Response Throughput"]) if decoupled else None,
        p50_ms=ms("p50 latency"),
        p95_ms=ms("p95 latency"),
        p99_ms=ms("p99 latency"),
        queue_ms=None if decoupled else queue_ms,
        compute_ms=None if decoupled else ms(*COMPUTE),
    )


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if not found:
        raise LaunchFailed(f"no {pattern} in {folder.name}, which perf_analyzer needs")
    return found[0]
