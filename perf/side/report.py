"""Rounds -> records, and records -> a table for people."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console
from rich.table import Table

from perf import records
from perf.peers.rounds import median_ratio
from perf.records import Record
from perf.side.asks import PICTURE_PX, TOKENS
from perf.side.bare import Rate
from perf.side.encoder import AT_ONCE, EncoderRounds, Size
from perf.side.turns import OURS, Answered, Contestant, Rounds

UNIT = "answers/s"
WORKLOAD = f"{PICTURE_PX}x{PICTURE_PX} JPEG, {TOKENS} tokens"


def encoder_record(size: Size, done: EncoderRounds, command: str) -> Record:
    def middle(rates: Sequence[Rate], what: str) -> float:
        return statistics.median(getattr(rate, what) for rate in rates)

    server_ms, bare_ms = (middle(rates, "cpu_ms") for rates in (done.ours, done.bare))
    notes = (
        f"{size.width_px}x{size.height_px} JPEG ({size.megapixels}), {AT_ONCE} at once, none known to any cache",
        f"CPU of a picture {server_ms:.2f} ms in the server / {bare_ms:.2f} ms bare, ratio {bare_ms / server_ms:.2f}",
        f"graphs alone {middle(done.graphs, 'per_s'):,.0f} pictures/s",
        "bare: one process for each core that decodes and encodes batches of 8; ours shares the cores with its client",
    )
    return Record(
        name=size.record,
        value=round(middle(done.ours, "per_s"), 1),
        unit="pictures/s",
        baseline=round(middle(done.bare, "per_s"), 1),
        ratio=round(done.ratio, 3),
        runs=[round(rate.per_s, 1) for rate in done.ours],
        command=command,
        note="; ".join(notes),
    )


class Reporter:
    """Records of one run."""

    def __init__(
        self, contestants: Mapping[str, Contestant], notes: Mapping[str, str], end_token: int, command: str
    ) -> None:
        self._versions = {name: contestant.versions for name, contestant in contestants.items()}
        self._notes, self._end_token, self._command = notes, end_token, command

    def end_to_end(self, rounds: Rounds) -> Iterator[Record]:
        """Ours against each that took every turn."""
        for name in rounds.peers():
            ours_tokens, their_tokens = (rounds.median(one, "tokens_per_s") for one in (OURS, name))
            ours_ms, their_ms = (rounds.median(one, "ttft_ms") for one in (OURS, name))
            ours_cpu_ms, their_cpu_ms = (rounds.median(one, "cpu_ms") for one in (OURS, name))
            notes = (
                f"{ours_tokens:,.0f} / {their_tokens:,.0f} tokens/s",
                f"TTFT {ours_ms:.1f} / {their_ms:.1f} ms",
                f"CPU of an answer in the server {ours_cpu_ms:.1f} / {their_cpu_ms:.1f} ms",
                equality(rounds.pairs(name), self._end_token),
                WORKLOAD,
            )
            yield self._record(f"e2e/{name}/{rounds.task.clients}", rounds, name, [*notes, self._notes[name]])

    def reuse(self, rounds: Rounds, nothing_repeated: Rounds) -> Record:
        """Ours against the fastest peer, if there is one; and what each gained by the repeats."""
        peers = rounds.peers()
        gains = [
            f"{name} {rounds.median(name, 'rate'):.1f}/s, {gain(rounds, nothing_repeated, name):.2f} of its own at 0 %"
            for name in (OURS, *peers)
        ]
        notes = [f"against {peers[0]}" if peers else "no peer took part", *gains, f"{rounds.task.clients} clients"]
        return self._record(rounds.task.title, rounds, peers[0] if peers else None, [*notes, WORKLOAD])

    def _record(self, title: str, rounds: Rounds, name: str | None, notes: Sequence[str]) -> Record:
        versions = {f"{one}: {key}": value for one in self._versions for key, value in self._versions[one].items()}
        told = {key: value for key, value in versions.items() if key.startswith((f"{name}: ", f"{OURS}: "))}
        return Record(
            name=title,
            value=round(rounds.median(OURS, "rate"), 2),
            unit=UNIT,
            baseline=None if name is None else round(rounds.median(name, "rate"), 2),
            ratio=None if name is None else round(rounds.ratio(name), 3),
            runs=[round(rate, 2) for rate in rounds.rates(OURS)],
            command=self._command,
            versions=records.versions() | told,
            note="; ".join(note for note in notes if note),
        )


def gain(rounds: Rounds, nothing_repeated: Rounds, name: str) -> float:
    return median_ratio(rounds.rates(name), nothing_repeated.rates(name))


def equality(pairs: Sequence[tuple[Answered, Answered]], end_token: int) -> str:
    """How many answers are the same, and how many up to where they would have ended, as far as ids are told."""
    equal = sum(theirs.equals(ours) for theirs, ours in pairs)
    begun = [theirs.begins_as(ours, end_token) for theirs, ours in pairs]
    if None in begun:
        return f"{equal} of {len(pairs)} texts equal to ours"
    return f"{equal} of {len(pairs)} answers equal to ours token by token, {sum(map(bool, begun))} up to their end"


def show(found: Sequence[Record]) -> None:
    """A table for people; what must be known to believe it is told line by line, and in the records."""
    table = Table("record", "value", "unit", "baseline", "ratio", title="side by side")
    for record in found:
        baseline, ratio = ("" if value is None else f"{value:g}" for value in (record.baseline, record.ratio))
        table.add_row(record.name, f"{record.value:g}", record.unit, baseline, ratio)
    Console().print(table)
