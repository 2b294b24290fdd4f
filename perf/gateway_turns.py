"""What the gateway adds: the same questions at the same moments, straight to the server and through it, by turns."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from perf.gateway_client import DIRECT, GATEWAY, Job
from perf.gateway_servers import ENVIRONMENT, ROOT, Started, cpu_s, waited_s
from perf.records import Record, commit, versions

PER_SECOND = 50.0
MORE_S = 60.0  # that a turn may take beside its seconds: pictures are drawn before it begins
OWN = ("receive", "plan", "moderation", "queue", "gateway")  # stages of the gateway itself
QUANTILES = {"p50": 0.50, "p99": 0.99}
MOMENTS = {"first": "first_ms", "whole": "whole_ms"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Of requests that are asked together."""

    name: str
    stream: bool
    picture_share: float = 0.0
    tokens: int = 2  # as the demo's model says of a picture, the token that ends it included


KINDS = (
    Kind(name="text_streamed", stream=True),
    Kind(name="text_whole", stream=False),
    Kind(name="mix_streamed", stream=True, picture_share=0.1),
    Kind(name="long_streamed", stream=True, tokens=8),
)


Step = tuple[Kind, str, int]  # its way and its round


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Of one kind, in one way, in one round."""

    kind: str
    way: str
    round: int
    answers: Sequence[Mapping[str, Any]]  # as the client wrote them
    gateway_cpu_s: float
    gateway_waited_s: float  # for a core, on which others ran

    def values(self, moment: str) -> list[float]:
        """In ms, of those that were answered; the first text, of those that had any."""
        return [ms for one in self.answers if not one["error"] and (ms := one[MOMENTS[moment]]) is not None]

    @property
    def own_ms(self) -> list[float]:
        return [sum(one["stages_ms"].get(name, 0.0) for name in OWN) for one in self.answers if not one["error"]]


class Turns:
    """Kept in a file after each turn; one of another commit or another length is begun anew."""

    def __init__(self, file: Path, *, seconds: float, resume: bool) -> None:
        self._file = file
        self._of: dict[str, Any] = {"commit": commit(), "seconds": seconds}
        self._done: dict[tuple[str, str, int], Turn] = {}
        if resume and file.exists():
            self._load(json.loads(file.read_text()))

    def has(self, kind: Kind, way: str, round_: int) -> bool:
        return (kind.name, way, round_) in self._done

    def add(self, turn: Turn) -> None:
        self._done[turn.kind, turn.way, turn.round] = turn
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps({**self._of, "turns": [asdict(one) for one in self._done.values()]}))

    def of(self, kind: Kind, way: str) -> list[Turn]:
        """By round."""
        found = [turn for turn in self._done.values() if (turn.kind, turn.way) == (kind.name, way)]
        return sorted(found, key=lambda turn: turn.round)

    def _load(self, kept: Mapping[str, Any]) -> None:
        if all(kept[name] == value for name, value in self._of.items()):
            self._done = {(one["kind"], one["way"], one["round"]): Turn(**one) for one in kept["turns"]}


def plan(rounds: int) -> list[Step]:
    """Who was first is second in the next round."""
    ways = {0: (DIRECT, GATEWAY), 1: (GATEWAY, DIRECT)}
    return [(kind, way, round_) for round_ in range(rounds) for kind in KINDS for way in ways[round_ % 2]]


def take(kind: Kind, way: str, round_: int, *, server: Started, gateway: Started, seconds: float) -> Turn:
    """Asks in a process of its own."""
    job = Job(
        way=way,
        url=f"http://{gateway.addresses['gateway'] if way == GATEWAY else server.addresses['grpc']}",
        stream=kind.stream,
        seed=1_000 * (KINDS.index(kind) + 1) + round_,
        seconds=seconds,
        per_second=PER_SECOND,
        picture_share=kind.picture_share,
        tokens=kind.tokens,
    )
    cpu_before_s, waited_before_s = cpu_s(gateway.pid), waited_s(gateway.pid)
    answers = asked(job)
    return Turn(
        kind=kind.name,
        way=way,
        round=round_,
        answers=answers,
        gateway_cpu_s=cpu_s(gateway.pid) - cpu_before_s,
        gateway_waited_s=waited_s(gateway.pid) - waited_before_s,
    )


def asked(job: Job) -> list[dict[str, Any]]:
    """What a client of its own was told."""
    done = subprocess.run(
        [sys.executable, "-m", "perf.gateway_client"],
        input=json.dumps(asdict(job)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=job.seconds + MORE_S,
        check=True,
        env=ENVIRONMENT,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def quantile(values: Sequence[float], part: float) -> float:
    """The least that so large a part of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(part * len(ordered)) - 1))]


def records(turns: Turns, command: str) -> list[Record]:
    make = partial(Record, command=command, versions=versions(), commit=commit())
    return [record for kind in KINDS for record in _of_kind(turns, kind, make)]


def _of_kind(turns: Turns, kind: Kind, make: Callable[..., Record]) -> list[Record]:
    ours, theirs = turns.of(kind, GATEWAY), turns.of(kind, DIRECT)
    found = []
    for moment in MOMENTS if kind.stream else ("whole",):
        for name, part in QUANTILES.items():
            through = [quantile(turn.values(moment), part) for turn in ours]
            straight = [quantile(turn.values(moment), part) for turn in theirs]
            added = [one - other for one, other in zip(through, straight, strict=True)]
            found.append(
                make(
                    name=f"added/{kind.name}/{moment}_{name}",
                    value=statistics.median(added),
                    unit="ms",
                    baseline=statistics.median(straight),
                    runs=added,
                    note=f"{name} through the gateway less {name} straight to the server, of each round",
                )
            )
    found += [
        make(
            name=f"own/{kind.name}_{name}",
            value=statistics.median(own := [quantile(turn.own_ms, part) for turn in ours]),
            unit="ms",
            runs=own,
            note=f"of each request the gateway's own stages ({', '.join(OWN)}), as it tells them in the answer",
        )
        for name, part in QUANTILES.items()
    ]
    cpu = [turn.gateway_cpu_s * 1e3 / len(turn.answers) for turn in ours]
    found.append(make(name=f"cpu/{kind.name}", value=statistics.median(cpu), unit="ms", runs=cpu, note="of a request"))
    waited = [turn.gateway_waited_s * 1e3 / len(turn.answers) for turn in ours]
    note = "of a request: for a core, on which others ran; more than a part of `own` says that the machine was busy"
    found.append(make(name=f"waited/{kind.name}", value=statistics.median(waited), unit="ms", runs=waited, note=note))
    found.append(_equal(ours, theirs, make, kind))
    return found


def _equal(ours: Sequence[Turn], theirs: Sequence[Turn], make: Callable[..., Record], kind: Kind) -> Record:
    pairs = [
        pair for one, other in zip(ours, theirs, strict=True) for pair in zip(one.answers, other.answers, strict=True)
    ]
    errors = sum(bool(one["error"]) for pair in pairs for one in pair)
    late_ms = max(quantile([one["late_ms"] for one in turn.answers], 0.99) for turn in (*ours, *theirs))
    return make(
        name=f"equal/{kind.name}",
        value=sum(one["text"] == other["text"] and not one["error"] for one, other in pairs),
        unit="answers",
        baseline=len(pairs),
        note=f"of {len(pairs):,} the same both ways; {errors} errors; clients late by up to {late_ms:.1f} ms (p99)",
    )
