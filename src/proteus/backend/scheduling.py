"""The JSON document `scheduling` of a request to `llm` <-> the engine's noun; times left become moments and back."""

from __future__ import annotations

import json
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from proteus.language.generation import Scheduling
from proteus.language.wrong_fields import wrong_field
from proteus.limits import LatencyClass

MAX_DEADLINE_MS = 2**53 - 1  # far enough, and exact in any JSON


class _Fields(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    cache_scope: str = ""
    tenant: str = ""
    latency_class: LatencyClass = "text"
    deadline_ms: Annotated[int, Field(ge=1, le=MAX_DEADLINE_MS)] | None = None  # from now


def read_scheduling(document: bytes, now_s: float) -> Scheduling:
    """Raises InvalidRequest naming the field, its value and its limit; `now_s` is on the monotonic clock."""
    try:
        fields = _Fields.model_validate_json(document)
    except ValidationError as error:
        raise wrong_field(error, "scheduling", _Fields.model_fields) from error
    return Scheduling(
        cache_scope=fields.cache_scope,
        tenant=fields.tenant or fields.cache_scope,
        latency_class=fields.latency_class,
        deadline_s=None if fields.deadline_ms is None else now_s + fields.deadline_ms / 1e3,
    )


def write_scheduling(scheduling: Scheduling, now_s: float) -> bytes:
    """The document for a call that begins at `now_s`."""
    document = {
        "cache_scope": scheduling.cache_scope,
        "tenant": scheduling.tenant,
        "latency_class": scheduling.latency_class,
        "deadline_ms": left_ms(scheduling.deadline_s, now_s),
    }
    return json.dumps(document).encode()


def left_ms(deadline_s: float | None, now_s: float) -> int | None:
    """As a document says it: a deadline that is over or nearly so has a millisecond left."""
    return None if deadline_s is None else min(max(1, int((deadline_s - now_s) * 1e3)), MAX_DEADLINE_MS)
