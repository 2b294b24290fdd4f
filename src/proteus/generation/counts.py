"""What the denoiser's loop counts since its start: rows, time, ends, waste."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import Literal

Moment = Literal["before", "after"]  # the cancel arrived


@dataclass(slots=True)
class Spent:
    """Of one picture, or of many."""

    rows: int = 0
    seconds: float = 0.0

    def add(self, rows: int, seconds: float) -> None:
        self.rows += rows
        self.seconds += seconds


@dataclass(slots=True)
class Counts:
    """Changed by the engine's thread alone."""

    calls: int = 0
    rows: int = 0  # of pictures
    padded_rows: int = 0
    row_room: int = 0  # the most rows that the calls could have had
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))  # of calls, by size in px
    previews: int = 0
    preview_s: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)  # finish reasons and error codes
    wasted: dict[Moment, Spent] = field(default_factory=lambda: {"before": Spent(), "after": Spent()})

    def note_call(self, size: str, seconds: float, *, rows: int, padded: int, room: int) -> None:
        self.calls += 1
        self.rows += rows
        self.padded_rows += padded
        self.row_room += room
        self.seconds[size] += seconds

    def note_preview(self, seconds: float) -> None:
        self.previews += 1
        self.preview_s += seconds

    def ended(self, outcome: str, spent: dict[Moment, Spent]) -> None:
        """`spent` on a picture is wasted where it was cancelled."""
        self.outcomes[outcome] += 1
        if outcome == "cancelled":
            for moment, part in spent.items():
                self.wasted[moment].add(part.rows, part.seconds)

    def copy(self) -> Counts:
        return replace(
            self,
            seconds=self.seconds.copy(),
            outcomes=self.outcomes.copy(),
            wasted={moment: replace(spent) for moment, spent in self.wasted.items()},
        )
