"""What contestants made of the same turns, and how ours is compared to another."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from perf.peers.rounds import median_ratio
from perf.side.asks import Ask, Task

OURS = "ours"
Measure = Literal["rate", "tokens_per_s", "ttft_ms", "cpu_ms"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """One answer; `ids` only from those that tell them, `text` without special tokens."""

    num_tokens: int
    ttft_s: float
    text: str
    ids: tuple[int, ...] | None = None

    def equals(self, other: Answered) -> bool:
        """Token by token, where both tell their tokens; else by the text."""
        if self.ids is None or other.ids is None:
            return self.text.strip() == other.text.strip()
        return self.ids == other.ids

    def begins_as(self, other: Answered, end_token: int) -> bool | None:
        """The same up to the token that ends an answer; None where one does not tell its tokens."""
        if self.ids is None or other.ids is None:
            return None
        return _up_to(end_token, self.ids) == _up_to(end_token, other.ids)


def _up_to(end_token: int, ids: tuple[int, ...]) -> tuple[int, ...]:
    return ids[: ids.index(end_token) + 1] if end_token in ids else ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """All answers of one turn, in the order of their asks, and the wall from the first ask to the last answer."""

    answers: Sequence[Answered]
    wall_s: float
    cpu_s: float = 0.0  # of the server and all its processes; the clients of OpenVINO are in its own

    @property
    def rate(self) -> float:
        """Answers per second."""
        return len(self.answers) / self.wall_s

    @property
    def tokens_per_s(self) -> float:
        return sum(answer.num_tokens for answer in self.answers) / self.wall_s

    @property
    def cpu_ms(self) -> float:
        """Of one answer."""
        return self.cpu_s / len(self.answers) * 1e3

    @property
    def ttft_ms(self) -> float:
        """The median."""
        return statistics.median(answer.ttft_s for answer in self.answers) * 1e3


class Contestant(Protocol):
    """What can be asked; `PeerFailed` from `take_turn` puts it out of the run."""

    name: str
    versions: dict[str, str]
    pid: int  # of the process that all others of it are below

    def take_turn(self, asks: Sequence[Ask], clients: int) -> Turn: ...

    def end(self) -> None: ...


@dataclass
class Rounds:
    """Turns of every contestant with one task, round by round."""

    task: Task
    turns: dict[str, list[Turn]] = field(default_factory=dict)

    def add(self, name: str, turn: Turn) -> None:
        self.turns.setdefault(name, []).append(turn)

    def drop(self, name: str) -> None:
        self.turns.pop(name, None)

    def median(self, name: str, what: Measure) -> float:
        return statistics.median(getattr(turn, what) for turn in self.turns[name])

    def rates(self, name: str) -> list[float]:
        return [turn.rate for turn in self.turns[name]]

    def ratio(self, name: str) -> float:
        """Ours / theirs: the median of the rounds' own ratios."""
        return median_ratio(self.rates(OURS), self.rates(name))

    def peers(self) -> list[str]:
        """Those that took every turn, the fastest first."""
        return sorted(self.turns.keys() - {OURS}, key=lambda name: -self.median(name, "rate"))

    def pairs(self, name: str) -> list[tuple[Answered, Answered]]:
        """Theirs and ours, of every ask."""
        return [
            pair
            for turn, ours in zip(self.turns[name], self.turns[OURS], strict=True)
            for pair in zip(turn.answers, ours.answers, strict=True)
        ]
