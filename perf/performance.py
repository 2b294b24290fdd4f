"""The tables of docs/performance.md, from perf/results/engine.json.

python -m perf.performance
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from perf.records import RESULTS

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
COLUMNS = ("record", "ours", "theirs", "ratio", "the same on the wall", "with prefills", "answers equal", "against")
HEAD = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}"
TABLE = re.compile(rf"{re.escape(HEAD)}\n(\|.*\n)*")
NOTE = re.compile(
    r"against (?P<entry>[^;]+); wall .*?ratio (?P<wall>[\d.]+); with prefills .*?ratio (?P<whole>[\d.]+); "
    r"(?P<equal>\d+) of (?P<answers>\d+) answers"
)


def table() -> str:
    """One row for each record, in tokens per second of CPU time; empty until the results are there."""
    path = RESULTS / "engine.json"
    found = json.loads(path.read_text()) if path.exists() else []
    return "\n".join([HEAD, *map(_row, found)]) + "\n"


def _row(record: Mapping[str, Any]) -> str:
    return f"| {' | '.join(_cells(record))} |"


def _cells(record: Mapping[str, Any]) -> Iterator[str]:
    told = NOTE.match(record["note"])
    if told is None:
        raise ValueError(f"the note of {record['name']} is not one of perf.engine: {record['note']}")
    yield f"`{record['name']}`"
    yield f"{record['value']:,.0f}"
    yield f"{record['baseline']:,.0f}"
    yield f"**{record['ratio']:.2f}**"
    yield told["wall"]
    yield told["whole"]
    yield f"{int(told['equal'])} of {int(told['answers'])}"
    yield f"{told['entry']}{_version(record, told['entry'])}"


def _version(record: Mapping[str, Any], entry: str) -> str:
    """The first package that an entry named as its own."""
    return next((f" {value}" for key, value in record["versions"].items() if key.startswith(f"{entry}: ")), "")


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(TABLE.sub(lambda _: table(), page), encoding="utf-8")


if __name__ == "__main__":
    main()
