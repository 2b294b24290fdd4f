"""A trace: JSON lines, first its header, then one request each in the order of arrival; docs/replay.md tells of it.

It holds no content: texts and pictures are made of seeds, so that the same line asks the same on every machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

Modality = Literal["text", "image", "multi-image", "draw"]
MODALITIES: tuple[Modality, ...] = ("text", "image", "multi-image", "draw")
Tier = Literal["low", "auto", "high"]
Format = Literal["png", "jpeg", "webp"]
LatencyClass = Literal["interactive", "batch"]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]
Guidance = Annotated[float, Field(ge=1, allow_inf_nan=False)]
DrawSize = Annotated[str, Field(pattern=r"^[1-9]\d{0,5}x[1-9]\d{0,5}$")]  # width x height in px
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


MAX_PIXELS = 1 << 28
MAX_SIDE_PX: Mapping[Format, int] = {"png": 65_535, "jpeg": 65_500, "webp": 16_383}  # that can be written
MAX_PICTURES = 64


class Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Objective(Row):
    """What an answer must keep to count as good. What is None is not asked for."""

    ttft_ms: Positive | None = None  # of `chat`
    inter_token_ms: Positive | None = None  # of `chat`: the mean of one answer
    draw_ms: Positive | None = None  # of `draw`: until all pictures are done


class Header(Row):
    kind: Literal["trace"] = "trace"
    version: Literal[1] = 1
    profile: str
    seed: Seed
    seconds: Positive  # in which requests arrive
    requests: Annotated[int, Field(ge=0)]
    objectives: Mapping[LatencyClass, Objective]


class TracedPicture(Row):
    """The same seed, size and format are the same bytes."""

    seed: Seed
    width_px: Count
    height_px: Count
    format: Format
    tier: Tier = "auto"

    @model_validator(mode="after")
    def _can_be_made(self) -> Self:
        side_px = MAX_SIDE_PX[self.format]
        if self.pixels > MAX_PIXELS or max(self.width_px, self.height_px) > side_px:
            told = f"{self.width_px}x{self.height_px} px is more than {MAX_PIXELS:,} pixels or {side_px:,} px a side"
            raise ValueError(f"a {self.format} of {told}: make it smaller")
        return self

    @property
    def pixels(self) -> int:
        return self.width_px * self.height_px


class Arrival(Row):
    """What requests of every kind say."""

    arrival_s: Annotated[float, Field(ge=0, allow_inf_nan=False)]  # since the begin of the trace
    session: Annotated[int, Field(ge=0)]
    tenant: str
    cache_scope: str
    latency_class: LatencyClass = "interactive"
    deadline_ms: Count | None = None  # to be started
    cancel_after_s: Positive | None = None  # when its client leaves, since it sent
    text_seed: Seed
    n: Count = 1  # answers or pictures


class ChatArrival(Arrival):
    kind: Literal["chat"] = "chat"
    pictures: Annotated[tuple[TracedPicture, ...], Field(max_length=MAX_PICTURES)] = ()
    text_tokens: Annotated[int, Field(ge=1, le=1_000_000)]  # of the question, about
    max_tokens: Count  # of the answer, and as many: it does not end earlier

    @property
    def modality(self) -> Modality:
        return "text" if not self.pictures else "image" if len(self.pictures) == 1 else "multi-image"


class DrawArrival(Arrival):
    kind: Literal["draw"] = "draw"
    size: DrawSize
    steps: Count
    guidance: Guidance

    @property
    def modality(self) -> Modality:
        return "draw"


Request = ChatArrival | DrawArrival
_LINE: TypeAdapter[Header | Request] = TypeAdapter(Annotated[Header | Request, Field(discriminator="kind")])


class BadTrace(Exception):
    """A file that is no trace of this version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    header: Header
    requests: Sequence[Request]

    def write(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        rows: Iterable[Row] = (self.header, *self.requests)
        text = "".join(row.model_dump_json(exclude_none=True) + "\n" for row in rows)
        file.write_text(text, encoding="utf-8")

    @classmethod
    def read(cls, file: Path) -> Trace:
        """Raises BadTrace naming file and line."""
        try:
            lines = file.read_text(encoding="utf-8").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise BadTrace(f"{file} cannot be read as text: {reason(error)}") from None
        rows = [_row(file, number, line) for number, line in enumerate(lines, start=1) if line.strip()]
        if not rows or not isinstance(rows[0], Header):
            raise BadTrace(f"{file}:1: a trace begins with its header: make one with `python -m perf.replay generate`")
        requests = [row for row in rows[1:] if not isinstance(row, Header)]
        if len(requests) != rows[0].requests or len(requests) != len(rows) - 1:
            raise BadTrace(f"{file}: {len(rows) - 1} lines after the header, which tells of {rows[0].requests}")
        if any(before.arrival_s > after.arrival_s for before, after in zip(requests, requests[1:], strict=False)):
            raise BadTrace(f"{file}: the lines are not in the order of arrival: sort them by arrival_s")
        return cls(header=rows[0], requests=requests)


def reason(error: OSError | UnicodeDecodeError) -> str:
    """Why a file cannot be read, without its name."""
    return (error.strerror or str(error)).lower() if isinstance(error, OSError) else "it is not UTF-8"


def _row(file: Path, number: int, line: str) -> Header | Request:
    try:
        return _LINE.validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the line"
        told = json.dumps(first["input"], default=str)[:80]
        raise BadTrace(f"{file}:{number}: {where}: {first['msg']} (got {told})") from None
