"""The whole of a model that sees, side by side with what a user would run instead, and the encoder path with its limit.

    make perf-peers                       # or: python -m perf.side [--peers NAME …] [--rounds 5] [--json]

All servers are up all the time and take turns with the same new pictures, questions and lengths; two cores for each in
its turn, the client included. A peer that cannot be had here is left out and says why.
perf/results/peers.json is written unless an option leaves out a peer or a number of clients.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace

from rich.console import Console
from rich.progress import Progress

from perf import records
from perf.arguments import at_least
from perf.peers.environments import PeerFailed
from perf.records import Record
from perf.side import encoder
from perf.side.asks import Task, end_to_end, reuse
from perf.side.bare import BareLoops
from perf.side.cpu import cpu_s
from perf.side.ours import Ours
from perf.side.peers import PEERS, Peer
from perf.side.report import Reporter, encoder_record, show
from perf.side.turns import OURS, Contestant, Rounds
from proteus.launcher.failure import LaunchFailed

CLIENTS = {1: 24, 8: 64, 16: 96}  # requests of a turn
REUSE_PERCENT, REUSE_CLIENTS, REUSE_REQUESTS = (0, 50, 80), 8, 64


def say(line: str) -> None:
    print(f"perf-peers: {line}", file=sys.stderr, flush=True)


def whole_tasks(clients: list[int]) -> list[Task]:
    return [end_to_end(number, CLIENTS[number], place) for place, number in enumerate(clients)]


def reuse_tasks() -> list[Task]:
    """The first has nothing repeated."""
    return [reuse(percent, REUSE_CLIENTS, REUSE_REQUESTS, place) for place, percent in enumerate(REUSE_PERCENT)]


def start_peers(peers: tuple[Peer, ...]) -> Iterator[Contestant]:
    for peer in peers:
        try:
            started = peer.start(say)
        except PeerFailed as failure:
            say(f"{peer.name} is left out: {failure}")
        else:
            say(f"{peer.name} is up: {', '.join(f'{name} {is_}' for name, is_ in started.versions.items())}")
            yield started


def take_turns(contestants: dict[str, Contestant], all_tasks: list[Task], rounds: int) -> dict[str, Rounds]:
    """By the title of the task. Every round has every task; who fails is out of the whole run."""
    done = {task.title: Rounds(task) for task in all_tasks}
    with Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task("side by side", total=(rounds + 1) * len(all_tasks))
        for round_ in range(rounds + 1):
            for task in all_tasks:
                progress.update(bar, description=f"round {round_ or 'to warm up'}: {task.title}")
                take_turn(contestants, done, done[task.title], round_)
                progress.advance(bar)
    return done


def take_turn(contestants: dict[str, Contestant], everything: dict[str, Rounds], here: Rounds, round_: int) -> None:
    asks = here.task.asks(round_)
    for name, contestant in list(contestants.items()):
        try:
            start_cpu_s = cpu_s(contestant.pid)
            turn = contestant.take_turn(asks, here.task.clients)
        except PeerFailed as failure:
            if name == OURS:
                raise
            say(f"{name} is left out from here: {failure}")
            contestants.pop(name).end()
            for rounds in everything.values():
                rounds.drop(name)
            continue
        if round_ > 0:  # the first one warms up, and compiles
            here.add(name, replace(turn, cpu_s=cpu_s(contestant.pid) - start_cpu_s))


def measure_encoder(ours: Ours, rounds: int, seconds: float, command: str) -> list[Record]:
    found = []
    for size in encoder.SIZES:
        say(f"{size.record}: {size.megapixels} pictures, {rounds + 1} rounds of {2.25 * seconds:.0f} s")
        pictures = encoder.photographs(size)
        loops = BareLoops(ours.deployment.path, pictures, len(os.sched_getaffinity(0)))
        try:
            found.append(encoder_record(size, encoder.measure(ours, loops, pictures, seconds, rounds), command))
        finally:
            loops.end()
    return found


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [peer.name for peer in PEERS]
    parser.add_argument("--peers", nargs="*", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--clients", type=int, nargs="+", choices=list(CLIENTS), default=list(CLIENTS))
    parser.add_argument("--rounds", type=at_least(1), default=5)
    parser.add_argument("--seconds", type=at_least(0.5), default=4.0, help="of a turn of the encoder path")
    parser.add_argument("--json", action="store_true", help="print the records instead of a table")
    return parser.parse_args()


def measured(arguments: argparse.Namespace, peers: tuple[Peer, ...], command: str) -> list[Record]:
    contestants: dict[str, Contestant] = {}
    try:
        ours = contestants[OURS] = Ours()
        found = measure_encoder(ours, arguments.rounds, arguments.seconds, command)
        for contestant in start_peers(peers):
            contestants[contestant.name] = contestant
        reporter = Reporter(contestants, {peer.name: peer.note for peer in peers}, ours.end_token, command)
        whole, repeated = whole_tasks(arguments.clients), reuse_tasks()
        done = take_turns(contestants, [*whole, *repeated], arguments.rounds)
    finally:
        for contestant in contestants.values():
            contestant.end()
    found += [record for task in whole for record in reporter.end_to_end(done[task.title])]
    return [*found, *(reporter.reuse(done[task.title], done[repeated[0].title]) for task in repeated)]


def main() -> int:
    """Measures, writes perf/results/peers.json where all was measured, prints; the exit status for the shell."""
    arguments = parsed()
    peers = tuple(peer for peer in PEERS if peer.name in arguments.peers)
    command = " ".join(["python -m perf.side", *sys.argv[1:]])
    try:
        found = measured(arguments, peers, command)
    except (PeerFailed, LaunchFailed) as failure:
        say(f"ours failed: {failure}")
        return 1
    for one in found:
        say(f"{one.name}: {one.note}")
    if arguments.json:
        print(json.dumps([asdict(one) for one in found], indent=2))
    else:
        show(found)
    if peers == PEERS and arguments.clients == list(CLIENTS):
        say(f"written to {records.write('peers', found)}")
    else:
        say("not all was measured, so nothing was written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
