"""Traffic from a profile, sent in open loop, and its report.

    python -m perf.replay all perf/profiles/mix.toml             # trace, run and report in var/replay/mix
    python -m perf.replay generate PROFILE --out trace.jsonl [--seconds 60] [--seed 1]
    python -m perf.replay run trace.jsonl --out FOLDER [--url 127.0.0.1:8001] [--speed 1.0]
    python -m perf.replay report FOLDER

Without --url a server of its own is started. docs/replay.md tells of profiles, traces, results and what is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from perf.arguments import at_least
from perf.records import commit, versions
from perf.replay.drive import Job, drive
from perf.replay.generate import generate
from perf.replay.profile import BadProfile, Profile
from perf.replay.report import CONDITIONS, PAGE, RESULTS, SUMMARY, TRACE, NoRun, report
from perf.replay.results import BadResults
from perf.replay.trace import BadTrace, Trace
from proteus.client import Client, ClientError
from proteus.deployment import Deployment
from proteus.errors import ProteusError
from proteus.launcher import LaunchFailed, Server

DEPLOYMENT = Path("deployments/demo.toml")
RUNS = Path("var/replay")
ASKED_S = 10.0  # for a server to say that it is there
STOPPED = 130  # as a shell tells of Ctrl-C


def main(words: list[str] | None = None) -> int:
    """The exit status for the shell."""
    arguments = _parser().parse_args(words)
    try:
        COMMANDS[arguments.command](arguments)
    except (BadProfile, BadTrace, BadResults, NoRun, LaunchFailed, ClientError, ProteusError, OSError) as error:
        print(f"replay: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("replay: stopped", file=sys.stderr)
        return STOPPED
    return 0


def _generate(arguments: argparse.Namespace) -> None:
    trace = generate(Profile.load(arguments.profile), seconds=arguments.seconds, seed=arguments.seed)
    trace.write(arguments.out)
    print(f"{len(trace.requests)} requests in {trace.header.seconds:g} s: {arguments.out}", file=sys.stderr)


def _run(arguments: argparse.Namespace) -> None:
    _replay(Trace.read(arguments.trace), arguments.out, arguments)


def _all(arguments: argparse.Namespace) -> None:
    profile = Profile.load(arguments.profile)
    trace = generate(profile, seconds=arguments.seconds, seed=arguments.seed)
    _replay(trace, arguments.out or RUNS / profile.name, arguments)


def _report(arguments: argparse.Namespace) -> None:
    report(arguments.folder, as_json=arguments.json)


def _replay(trace: Trace, folder: Path, arguments: argparse.Namespace) -> None:
    """One run: everything it was and found goes to `folder`, in place of an earlier run's."""
    folder.mkdir(parents=True, exist_ok=True)
    with _server(arguments, folder / "server.log") as url:
        for name in (RESULTS, SUMMARY, PAGE):
            (folder / name).unlink(missing_ok=True)
        trace.write(folder / TRACE)
        job = Job(
            trace=folder / TRACE,
            results=folder / RESULTS,
            url=url,
            speed=arguments.speed,
            timeout_s=arguments.timeout_s,
        )
        (folder / CONDITIONS).write_text(json.dumps(_conditions(arguments, trace), indent=2) + "\n")
        try:
            drive(job)
        finally:
            if job.results.exists():  # also of a run that is stopped
                report(folder, as_json=arguments.json)
                print(f"report: {folder / PAGE}", file=sys.stderr)


@contextmanager
def _server(arguments: argparse.Namespace, log: Path) -> Iterator[str]:
    """The address of the gRPC port of the one named, or of a new one."""
    if arguments.url:
        with Client(arguments.url) as client:
            client.contract(timeout_s=ASKED_S)
        yield arguments.url
        return
    with Server(Deployment.load(arguments.deployment), log=log, show_progress=True) as server:
        yield server.ports.grpc_url


def _conditions(arguments: argparse.Namespace, trace: Trace) -> dict[str, object]:
    cores = len(os.sched_getaffinity(0))
    return {
        "server": arguments.url or str(arguments.deployment),
        "trace": f"{trace.header.profile}, seed {trace.header.seed}, {trace.header.seconds:g} s",
        "speed": arguments.speed,
        "cores": cores,
        "commit": commit(),
        **versions("tritonclient"),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m perf.replay", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    generating = commands.add_parser("generate", help="a trace from a profile")
    running = commands.add_parser("run", help="send a trace, and report")
    reporting = commands.add_parser("report", help="make the report of a run again")
    every = commands.add_parser("all", help="generate, run and report")
    for one in (generating, every):
        one.add_argument("profile", type=Path, metavar="PROFILE.toml")
        one.add_argument("--seconds", type=at_least(1.0), help="in which requests arrive; else the profile's")
        one.add_argument("--seed", type=at_least(0), default=1)
    generating.add_argument("--out", type=Path, required=True)
    running.add_argument("trace", type=Path, metavar="trace.jsonl")
    running.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    every.add_argument("--out", type=Path, metavar="FOLDER", help=f"else {RUNS}/<name of the profile>")
    for one in (running, every):
        one.add_argument("--url", help="host:port of a running server's gRPC")
        one.add_argument("--deployment", type=Path, default=DEPLOYMENT, help="of the server that is started")
        one.add_argument("--speed", type=at_least(0.01), default=1.0, help="arrivals are so many times as dense")
        one.add_argument("--timeout-s", type=at_least(1.0), default=120.0, help="of one answer")
    reporting.add_argument("folder", type=Path)
    for one in (running, every, reporting):
        one.add_argument("--json", action="store_true", help="print the summary as JSON instead of tables")
    return parser


COMMANDS = {"generate": _generate, "run": _run, "all": _all, "report": _report}

if __name__ == "__main__":
    sys.exit(main())
