"""What all contestants did with the same jobs, round by round, and how it is compared."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from perf.peers.child import Seconds, Turn


@dataclass
class Rounds:
    """Turns of every entry with one kind of job."""

    decode_only: bool  # rates of the time in which all decode; else of the whole job
    turns: dict[str, list[Turn]] = field(default_factory=dict)

    def add(self, name: str, turn: Turn) -> None:
        self.turns.setdefault(name, []).append(turn)

    def drop(self, name: str) -> None:
        self.turns.pop(name, None)

    def rates(self, name: str, clock: str = "cpu") -> list[float]:
        """Tokens per second, round by round."""
        if not self.decode_only:
            return self.whole_rates(name, clock)
        return [turn.decode_tokens / _of(turn.decode_s, clock) for turn in self.turns[name]]

    def whole_rates(self, name: str, clock: str = "cpu") -> list[float]:
        """The same with the prefills."""
        return [sum(map(len, turn.ids)) / _of(turn.whole_s, clock) for turn in self.turns[name]]

    def ratio(self, name: str, clock: str = "cpu") -> float:
        """Ours / theirs: the median of the rounds' own ratios."""
        return median_ratio(self.rates("ours", clock), self.rates(name, clock))

    def whole_ratio(self, name: str) -> float:
        return median_ratio(self.whole_rates("ours"), self.whole_rates(name))

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


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return statistics.median(one / other for one, other in zip(ours, theirs, strict=True))


def _of(seconds: Seconds, clock: str) -> float:
    return seconds.cpu if clock == "cpu" else seconds.wall
