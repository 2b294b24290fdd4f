"""Decode tokens per second of our engine, of a bare loop over its graph (the limit) and of other engines, in turns.

One thread each, all on the same core, greedy, the same prompts and as many tokens whatever would end an answer. A rate
is taken while every stream decodes. docs/performance.md says how to read it.

    python -m perf.engine [--peers NAME…] [--streams 1 4 8 16] [--tokens 128] [--rounds 15] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from perf import records
from perf.arguments import at_least
from perf.peers.child import Job
from perf.peers.entrants import CHECKPOINT, PEERS, Peer, start_all
from perf.peers.environments import PeerFailed
from perf.peers.process import Contestant
from perf.peers.rounds import Rounds
from perf.records import Record

PROMPT_TOKENS = 80
STREAMS = (1, 4, 8, 16)
TOKENS = 128
UNIT = "tokens/s of CPU time"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A kind of job: how many requests, how many of them at once, and how long their answers are."""

    at_once: int
    requests: int
    shortest: int
    longest: int

    @property
    def is_mixed(self) -> bool:
        return self.shortest < self.longest

    def job(self, round_: int) -> Job:
        """Prompts of any ids but the placeholder's, other ones in each round."""
        config = json.loads((CHECKPOINT / "config.json").read_text())
        vocab_size, placeholder = config["text_config"]["vocab_size"], config["image_token_index"]
        rng = random.Random(f"{self.requests} of {self.longest} {round_}")
        allowed = [token for token in range(vocab_size) if token != placeholder]
        prompts = [rng.choices(allowed, k=PROMPT_TOKENS) for _ in range(self.requests)]
        # The first is as long as any may be, so that memory made for the longest is of one size in all rounds.
        lengths = [self.longest, *(rng.randint(self.shortest, self.longest) for _ in prompts[1:])]
        return Job(prompts, lengths, self.at_once)


def together(streams: int, tokens: int) -> Task:
    """All begin at once, and are equally long."""
    return Task(at_once=streams, requests=streams, shortest=tokens, longest=tokens)


def mixed(streams: int, tokens: int) -> Task:
    """More requests than streams, of unequal lengths: who ends makes room for the next."""
    return Task(at_once=streams, requests=3 * streams, shortest=tokens // 8, longest=tokens)


def tasks(streams: Sequence[int], tokens: int) -> list[Task]:
    """The mixed one with the most streams only: engines that join requests are set up for so many."""
    last = [mixed(STREAMS[-1], tokens)] if STREAMS[-1] in streams else []
    return [*(together(number, tokens) for number in streams), *last]


def compete(contestants: dict[str, Contestant], task: Task, rounds: int) -> Rounds:
    """All take a turn in each round; who fails is out of the whole run."""
    done = Rounds(decode_only=not task.is_mixed)
    for round_ in range(rounds + 1):
        job = task.job(round_)
        for name, contestant in list(contestants.items()):
            try:
                turn = contestant.take_turn(job)
            except PeerFailed as failure:
                if name in ("bare", "ours"):
                    raise
                say(f"{name} is left out from here: {failure}")
                contestants.pop(name).end()
                done.drop(name)
                continue
            if round_ > 0:  # the first one warms up, and compiles
                done.add(name, turn)
    return done


def recorded(
    done: Rounds, task: Task, peers: Sequence[Peer], contestants: dict[str, Contestant], command: str
) -> list[Record]:
    found, kind = [], "mixed" if task.is_mixed else "peer"
    if not task.is_mixed:
        found.append(record(done, f"limit/{task.at_once}", "bare", contestants, command, ""))
    for peer in peers:
        entries = [entry.name for entry in peer.entries if entry.name in done.turns]
        if entries:
            name = done.fastest(entries)
            found.append(record(done, f"{kind}/{peer.name}/{task.at_once}", name, contestants, command, peer.note))
    return found


def record(done: Rounds, title: str, name: str, contestants: dict[str, Contestant], command: str, note: str) -> Record:
    """Ours against one entry."""
    equal, num_answers = done.equal_answers(name)
    wall = [statistics.median(done.rates(one, "wall")) for one in ("ours", name)]
    whole = [statistics.median(done.whole_rates(one)) for one in ("ours", name)]
    notes = [
        f"against {name}",
        f"wall {wall[0]:,.0f} / {wall[1]:,.0f} tokens/s, ratio {done.ratio(name, 'wall'):.2f}",
        f"with prefills {whole[0]:,.0f} / {whole[1]:,.0f} of CPU time, ratio {done.whole_ratio(name):.2f}",
        f"{equal} of {num_answers} answers equal to ours",
        *([note] if note else []),
    ]
    return Record(
        name=title,
        value=round(statistics.median(done.rates("ours")), 1),
        unit=UNIT,
        baseline=round(statistics.median(done.rates(name)), 1),
        ratio=round(done.ratio(name), 3),
        runs=[round(rate, 1) for rate in done.rates("ours")],
        command=command,
        versions=records.versions() | {f"{name}: {key}": value for key, value in contestants[name].versions.items()},
        note="; ".join(notes),
    )


def say(line: str) -> None:
    print(f"perf-engine: {line}", file=sys.stderr, flush=True)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [peer.name for peer in PEERS]
    parser.add_argument("--peers", nargs="*", choices=names, default=names, metavar="NAME", help=", ".join(names))
    parser.add_argument("--streams", type=int, nargs="+", choices=STREAMS, default=list(STREAMS))
    parser.add_argument("--tokens", type=at_least(2), default=TOKENS)
    parser.add_argument("--rounds", type=at_least(1), default=15)
    parser.add_argument("--json", action="store_true", help="print the records, not a table")
    return parser.parse_args()


def main() -> int:
    arguments = parsed()
    peers = tuple(peer for peer in PEERS if peer.name in arguments.peers)
    is_whole = peers == PEERS and set(arguments.streams) == set(STREAMS) and arguments.tokens == TOKENS
    command = " ".join(["python -m perf.engine", *sys.argv[1:]])
    core = max(os.sched_getaffinity(0))
    found: list[Record] = []
    contestants: dict[str, Contestant] = {}
    try:
        contestants |= start_all(peers, core, say)
        for task in tasks(arguments.streams, arguments.tokens):
            done = compete(contestants, task, arguments.rounds)
            fresh = recorded(done, task, peers, contestants, command)
            found += fresh
            for one in fresh:
                say(f"{one.name}: {one.value:,.0f} / {one.baseline:,.0f} = {one.ratio} ({one.note})")
    except PeerFailed as failure:
        say(f"ours or the bare loop failed: {failure}")
        return 1
    finally:
        for contestant in contestants.values():
            contestant.end()
    if arguments.json:
        print(json.dumps([asdict(one) for one in found], indent=2))
    if is_whole:
        say(f"written to {records.write('engine', found)}")
    else:
        say("not all was measured, so nothing was written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
