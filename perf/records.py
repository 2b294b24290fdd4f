"""Records of a measurement, as perf/results/<name>.json holds them: one value each, with what it is compared to."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
LIBRARIES = ("numpy", "onnxruntime", "tokenizers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    name: str  # as the issue or the page that reads it names it: `limit/8`, `peer/openvino/8`, `text_ttft_p95`
    value: float  # the median of the runs
    unit: str
    baseline: float | None = None  # the same of what it is compared to, in the same run
    ratio: float | None = None  # value / baseline: the median of the runs' own ratios
    runs: Sequence[float] = ()
    command: str
    versions: Mapping[str, str] = field(default_factory=lambda: versions())
    commit: str = field(default_factory=lambda: commit())
    note: str = ""  # what a reader must know to believe the number


def versions(*more: str) -> dict[str, str]:
    """Of Python, of the libraries that always matter and of `more`."""
    return {"python": platform.python_version()} | {name: version(name) for name in (*LIBRARIES, *more)}


def commit() -> str:
    """The commit that was measured; `+` says that the working tree was changed since. Not known without a checkout."""
    try:
        name, changes = _git("rev-parse", "--short", "HEAD"), _git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return name + ("+" if changes else "")


def write(name: str, records: Sequence[Record]) -> Path:
    """perf/results/<name>.json, written anew."""
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps([asdict(record) for record in records], indent=2) + "\n")
    return path


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=RESULTS, capture_output=True, text=True, check=True).stdout.strip()
