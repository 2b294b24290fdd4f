"""What the gateway adds to a request, what it holds, and what is lost when one of two servers goes.

    make perf-gateway                     # or: python -m perf.gateway [--rounds 3] [--seconds 12] [--resume] [--json]

Seven minutes, in which nothing else should run. Writes perf/results/gateway.json, and the tables and the plot of
docs/gateway_load.md. A run that was stopped goes on with --resume: the turns it had taken are in var/gateway_load.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from perf import gateway_held, gateway_restart
from perf.arguments import at_least
from perf.gateway_page import write_page
from perf.gateway_restart import Course
from perf.gateway_servers import ROOT, NotStarted, Started, gateway, serve
from perf.gateway_turns import Step, Turns, plan, records, take
from perf.records import Record, write

KEPT = ROOT / "var" / "gateway_load.json"
OTHER_STEPS = 4  # beside the turns: two of what is held, two of what is lost


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=at_least(1), default=3, help="of each kind of requests in each way")
    parser.add_argument("--seconds", type=at_least(1.0), default=12.0, help="of one turn")
    parser.add_argument("--resume", action="store_true", help="take no turn again that this commit has taken")
    parser.add_argument("--no-write", action="store_true", help="leave results, page and plot as they are")
    parser.add_argument("--json", action="store_true", help="print the records instead of a table")
    return parser.parse_args()


def measured(arguments: argparse.Namespace, command: str) -> tuple[list[Record], Turns, list[Course]]:
    steps = plan(arguments.rounds)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    with ExitStack() as stack:
        progress = stack.enter_context(Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)))
        bar = progress.add_task("a server is started", total=len(steps) + OTHER_STEPS)

        def say(what: str) -> None:
            progress.update(bar, advance=1, description=what)

        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="proteus_gateway_")))
        server = serve(folder, "first")
        stack.callback(server.end)
        turns = _take_all(steps, arguments, folder, server, say)
        found = records(turns, command)
        found += gateway_held.measure(folder, command, say)
        lost, courses = gateway_restart.measure(folder, server, command, say)
    return found + lost, turns, courses


def _take_all(
    steps: Sequence[Step], arguments: argparse.Namespace, folder: Path, server: Started, say: Callable[[str], None]
) -> Turns:
    turns = Turns(KEPT, seconds=arguments.seconds, resume=arguments.resume)
    front = gateway(folder, server)
    try:
        for kind, way, round_ in steps:
            say(f"{kind.name} {way}, round {round_ + 1}")
            if not turns.has(kind, way, round_):
                turns.add(take(kind, way, round_, server=server, gateway=front, seconds=arguments.seconds))
    finally:
        front.end()
    return turns


def show(found: list[Record]) -> None:
    table = Table("record", "value", "beside", "unit", "runs", "note")
    for one in found:
        runs = ", ".join(f"{run:.2f}" for run in one.runs)
        beside = "" if one.baseline is None else f"{one.baseline:,.2f}"
        table.add_row(one.name, f"{one.value:,.2f}", beside, one.unit, runs, one.note)
    Console(width=200).print(table)


def main() -> int:
    arguments = parsed()
    command = " ".join(["python -m perf.gateway", *sys.argv[1:]])
    try:
        found, turns, courses = measured(arguments, command)
    except NotStarted as failure:
        print(f"perf-gateway: {failure}", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps([asdict(one) for one in found], indent=2))
    else:
        show(found)
    if not arguments.no_write:
        write("gateway", found)
        write_page(found, turns, courses)
    return 0


if __name__ == "__main__":
    sys.exit(main())
