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
from dataclasses import asdict, dataclass, field

from perf import records
from perf.peers.child import Seconds, Turn
from perf.peers.entrants import CHECKPOINT, PEERS, Peer, start_all
from perf.peers.environments import PeerFailed
from perf.peers.process import Contestant
from perf.records import Record

PROMPT_TOKENS = 80
STREAMS = (1, 4, 8, 16)
TOKENS = 128
UNIT = "tokens/s of CPU time"


@dataclass
class Rounds:
    """Turns of every entry with one number of streams, one for each round."""

    streams: int
    turns: dict[str, list[Turn]] = field(default_factory=dict)

    def add(self, name: str, turn: Turn) -> None:
        self.turns.setdefault(name, []).append(turn)

    def drop(self, name: str) -> None:
        self.turns.pop(name, None)

    def rates(self, name: str, clock: str = "cpu") -> list[float]:
        """Decode tokens per second, round by round."""
        return [turn.decode_tokens / _of(turn.decode_s, clock) for turn in self.turns[name]]

    def whole_rates(self, name: str) -> list[float]:
        """Tokens per second with the prefills."""
        return [sum(map(len, turn.ids)) / turn.whole_s.cpu for turn in self.turns[name]]

    def ratio(self, name: str, clock: str = "cpu") -> float:
        """Ours / theirs: the median of the rounds' own ratios."""
        return median_ratio(self.rates("ours", clock), self.rates(name, clock))

    def fastest(self, names: Sequence[str]) -> str:
        return max(names, key=lambda name: statistics.median(self.rates(name)))

    def equal_answers(self, name: str) -> tuple[int, int]:
        """Answers whose tokens are ours, and all."""
        pairs = [
            pair
            for turn, ours in zip(self.turns[name], self.turns["ours"], strict=True)
            for pair in zip(turn.ids, ours.ids, strict=True)
        ]
        return sum(theirs == ours for theirs, ours in pairs), len(pairs)


def _of(seconds: Seconds, clock: str) -> float:
    return seconds.cpu if clock == "cpu" else seconds.wall


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return statistics.median(one / other for one, other in zip(ours, theirs, strict=True))


def prompts(streams: int, round_: int) -> list[list[int]]:
    """Of ordinary ids, other ones in each round."""
    config = json.loads((CHECKPOINT / "config.json").read_text())
    rng = random.Random(f"{streams} {round_}")
    allowed = [token for token in range(config["text_config"]["vocab_size"]) if token != config["image_token_index"]]
    return [rng.choices(allowed, k=PROMPT_TOKENS) for _ in range(streams)]


def compete(contestants: dict[str, Contestant], streams: int, tokens: int, rounds: int) -> Rounds:
    """All take a turn in each round; who fails is out of the whole run."""
    done = Rounds(streams)
    for round_ in range(rounds + 1):
        asked = prompts(streams, round_)
        for name, contestant in list(contestants.items()):
            try:
                turn = contestant.take_turn(asked, tokens)
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


def recorded(done: Rounds, peers: Sequence[Peer], contestants: dict[str, Contestant], command: str) -> list[Record]:
    found = [record(done, f"limit/{done.streams}", "bare", contestants, command, "")]
    for peer in peers:
        entries = [entry.name for entry in peer.entries if entry.name in done.turns]
        if entries:
            name = done.fastest(entries)
            found.append(record(done, f"peer/{peer.name}/{done.streams}", name, contestants, command, peer.note))
    return found


def record(done: Rounds, title: str, name: str, contestants: dict[str, Contestant], command: str, note: str) -> Record:
    """Ours against one entry."""
    equal, num_answers = done.equal_answers(name)
    wall = [statistics.median(done.rates(one, "wall")) for one in ("ours", name)]
    whole = [done.whole_rates(one) for one in ("ours", name)]
    notes = [
        f"against {name}",
        f"wall {wall[0]:,.0f} / {wall[1]:,.0f} tokens/s, ratio {done.ratio(name, 'wall'):.2f}",
        f"with prefills {statistics.median(whole[0]):,.0f} / {statistics.median(whole[1]):,.0f} of CPU time, "
        f"ratio {median_ratio(*whole):.2f}",
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
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--rounds", type=int, default=15)
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
        for streams in arguments.streams:
            done = compete(contestants, streams, arguments.tokens, arguments.rounds)
            fresh = recorded(done, peers, contestants, command)
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
