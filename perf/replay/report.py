"""A folder of a run -> summary.json and report.html beside what they are made of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from perf.replay.page import DEFINITIONS, page
from perf.replay.results import read_results
from perf.replay.score import Summary, summarise
from perf.replay.sheets import show
from perf.replay.trace import Trace

TRACE, RESULTS, CONDITIONS = "trace.jsonl", "results.jsonl", "run.json"
SUMMARY, PAGE = "summary.json", "report.html"


class NoRun(Exception):
    """A folder that holds no run."""


def report(folder: Path, *, as_json: bool) -> Summary:
    """Writes both and prints the numbers: tables, or one JSON document."""
    for name in (RESULTS, TRACE, CONDITIONS):
        if not (folder / name).exists():
            raise NoRun(f"{folder} holds no {name}: name the folder that `run` was given as --out")
    trace, results = Trace.read(folder / TRACE), read_results(folder / RESULTS)
    if wrong := [result.line for result in results if not 1 <= result.line <= len(trace.requests)]:
        raise NoRun(f"{folder / RESULTS} is not of {TRACE}, which has no line {wrong[0]}: run it again")
    conditions: Mapping[str, object] = json.loads((folder / CONDITIONS).read_text())
    summary = summarise(trace.header, results)
    document = {"run": conditions, "definitions": DEFINITIONS, **asdict(summary)}
    text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    (folder / SUMMARY).write_text(text)
    (folder / PAGE).write_text(page(summary, results, conditions), encoding="utf-8")
    print(text, end="") if as_json else show(summary, results)
    return summary
