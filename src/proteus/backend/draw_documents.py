"""The JSON documents `settings` and `scheduling` of a request to `denoiser` <-> the loop's nouns."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from proteus.backend.scheduling import MAX_DEADLINE_MS, left_ms
from proteus.generation.task import DrawTask, Settings
from proteus.language.wrong_fields import wrong_field
from proteus.limits import SamplerName


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Settings(_Document):
    """Types only: which values there may be, the loop knows."""

    width_px: int
    height_px: int
    steps: int
    guidance: float
    sampler: SamplerName
    seed: int
    image_index: int = 0
    preview_every: int = 0
    max_previews_per_s: float = 4.0


class _Scheduling(_Document):
    tenant: str = ""
    latency_class: Literal["media", "batch"] = "media"
    deadline_ms: Annotated[int, Field(ge=1, le=MAX_DEADLINE_MS)] | None = None  # from now


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawScheduling:
    """Whose picture it is and how long it can wait."""

    tenant: str
    latency_class: Literal["media", "batch"]
    deadline_s: float | None  # to begin, on the monotonic clock


_Kind = TypeVar("_Kind", bound=_Document)


def read_settings(document: bytes) -> Settings:
    """Raises InvalidRequest naming the field, its value and its limit."""
    return Settings(**_read(_Settings, document, "settings").model_dump())


def write_settings(settings: Settings) -> bytes:
    return json.dumps(asdict(settings)).encode()


def read_scheduling(document: bytes, now_s: float) -> DrawScheduling:
    """The same; `now_s` is on the monotonic clock."""
    fields = _read(_Scheduling, document, "scheduling")
    return DrawScheduling(
        tenant=fields.tenant,
        latency_class=fields.latency_class,
        deadline_s=None if fields.deadline_ms is None else now_s + fields.deadline_ms / 1e3,
    )


def write_scheduling(task: DrawTask, now_s: float) -> bytes:
    """The document for a call that begins at `now_s`."""
    document = {
        "tenant": task.tenant,
        "latency_class": task.latency_class,
        "deadline_ms": left_ms(task.deadline_s, now_s),
    }
    return json.dumps(document).encode()


def _read(kind: type[_Kind], document: bytes, name: str) -> _Kind:
    try:
        return kind.model_validate_json(document)
    except ValidationError as error:
        raise wrong_field(error, name, kind.model_fields) from error
