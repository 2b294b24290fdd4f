"""The tables of docs/side_by_side.md, from perf/results/peers.json.

python -m perf.side.page
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from perf.records import RESULTS

PAGE = Path(__file__).parents[2] / "docs" / "side_by_side.md"
RECORDS = RESULTS / "peers.json"
ENCODER = ("record", "through Triton, pictures/s", "bare loop", "ratio", "CPU of a picture, ours / bare")
WHOLE = (
    "record",
    "ours, answers/s",
    "theirs",
    "ratio",
    "tokens/s",
    "TTFT",
    "CPU of an answer",
    "equal answers",
)
REUSE = ("record", "ours, answers/s", "fastest peer", "ratio", "what the repeats gained")
Row = Mapping[str, Any]


def tables(found: Sequence[Row]) -> dict[tuple[str, ...], str]:
    """By the columns of each; without rows until there are results."""
    return {
        columns: "\n".join([head(columns), *(_line(cells(record)) for record in found if _is_of(record, kind))]) + "\n"
        for columns, kind, cells in (
            (ENCODER, "encoder_path", _encoder),
            (WHOLE, "e2e", _whole),
            (REUSE, "reuse", _reuse),
        )
    }


def head(columns: Sequence[str]) -> str:
    return f"{_line(columns)}\n|{'---|' * len(columns)}"


def written(page: str, found: Sequence[Row]) -> str:
    """The page with its tables made anew; ValueError where a table has no place in it."""
    for columns, table in tables(found).items():
        place = re.compile(rf"{re.escape(head(columns))}\n(\|.*\n)*")
        page, count = place.subn(lambda _, table=table: table, page)
        if count != 1:
            raise ValueError(f"{count} tables with the columns {', '.join(columns)} in {PAGE}, wanted 1")
    return page


def results() -> list[dict[str, Any]]:
    return json.loads(RECORDS.read_text()) if RECORDS.exists() else []


def _is_of(record: Row, kind: str) -> bool:
    return str(record["name"]).split("/")[0] == kind


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _measured(record: Row) -> list[str]:
    baseline, ratio = record["baseline"], record["ratio"]
    return [
        f"`{record['name']}`",
        f"{record['value']:,.1f}",
        "" if baseline is None else f"{baseline:,.1f}",
        "" if ratio is None else f"**{ratio:.2f}**",
    ]


def _encoder(record: Row) -> list[str]:
    return [*_measured(record), _told(record, r"CPU of a picture ([\d.]+ ms)[^/]*/ ([\d.]+ ms)", " / ".join)]


def _whole(record: Row) -> list[str]:
    tokens = _told(record, r"([\d,]+ / [\d,]+) tokens/s", "".join)
    ttft = _told(record, r"TTFT ([\d.]+ / [\d.]+ ms)", "".join)
    cpu = _told(record, r"CPU of an answer in the server ([\d.]+ / [\d.]+ ms)", "".join)
    equal = _told(record, r"(\d+) of (\d+) (?:texts|answers) equal to ours", " of ".join)
    to_end = re.search(r", (\d+) up to their end", record["note"])
    answers = f"{equal}, {to_end[1]} up to the end" if to_end else f"{equal}, as texts"
    return [*_measured(record), tokens, ttft, cpu, answers]


def _reuse(record: Row) -> list[str]:
    gains = re.findall(r"(\w+) [\d.]+/s, ([\d.]+) of its own at 0 %", record["note"])
    return [*_measured(record), ", ".join(f"{name} {gain}" for name, gain in gains)]


def _told(record: Row, pattern: str, joined: Callable[[Sequence[str]], str]) -> str:
    found = re.search(pattern, record["note"])
    if found is None:
        raise ValueError(f"the note of {record['name']} is not one of perf.side: {record['note']}")
    return joined(found.groups())


def main() -> None:
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), results()), encoding="utf-8")


if __name__ == "__main__":
    main()
