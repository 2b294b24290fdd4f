"""Results: one JSON line for each request that was sent, in the order in which they ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from perf.replay.trace import LatencyClass, Modality, Row

CANCELLED = "cancelled"
OK = "ok"


class Result(Row):
    """Moments are seconds since the clock of the run began."""

    line: int  # of the trace, the first after the header is 1
    modality: Modality
    size: str | None  # size bucket of the largest picture; of `draw` the size that was asked for; None: text
    tenant: str
    session: int
    latency_class: LatencyClass
    arrival_s: float  # as the trace and the speed say
    sent_s: float
    first_s: float | None = None  # first token at the client; None for `draw`, and where none came
    end_s: float
    gaps_ms: tuple[float, ...] = ()  # between tokens; those of one message share its gap evenly
    outcome: str  # "ok", "cancelled", or the code of the error
    error: str | None = None  # the whole text
    finish_reason: str | None = None
    # What the report told, as it stands there; empty where none came.
    usage: Mapping[str, Any] = {}
    stages_ms: Mapping[str, float] = {}
    ingress_ms: Mapping[str, float] = {}
    ttft_ms: float | None = None
    caches: Mapping[str, Mapping[str, float]] = {}
    media: tuple[Mapping[str, Any], ...] = ()

    @property
    def is_ok(self) -> bool:
        return self.outcome == OK

    @property
    def is_error(self) -> bool:
        return self.outcome not in (OK, CANCELLED)

    @property
    def to_first_ms(self) -> float | None:
        """From when it was to arrive: a sender that is late does not make the server look faster."""
        return None if self.first_s is None else (self.first_s - self.arrival_s) * 1e3

    @property
    def to_end_ms(self) -> float:
        return (self.end_s - self.arrival_s) * 1e3

    @property
    def lateness_ms(self) -> float:
        """Of the sender."""
        return (self.sent_s - self.arrival_s) * 1e3

    @property
    def inter_token_ms(self) -> float | None:
        """The mean of this answer."""
        return sum(self.gaps_ms) / len(self.gaps_ms) if self.gaps_ms else None

    @property
    def downscaled(self) -> int:
        """Pictures that the server made smaller first."""
        return sum(bool(medium.get("downscaled")) for medium in self.media)


class BadResults(Exception):
    """A file that holds something else."""


def read_results(file: Path) -> list[Result]:
    """What is there: a run that was stopped has written what had ended. Raises BadResults naming file and line."""
    return list(_rows(file))


def _rows(file: Path) -> Iterator[Result]:
    *lines, _torn = file.read_text(encoding="utf-8").split("\n")  # a line that was being written has no end
    for number, line in enumerate(lines, start=1):
        try:
            yield Result.model_validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the line"
            raise BadResults(f"{file}:{number} is no result: {where}: {first['msg']}") from None
