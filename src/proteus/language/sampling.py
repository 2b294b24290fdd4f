"""How a request wants its tokens chosen and when it ends: the checked form of the JSON document `sampling`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from proteus.errors import InvalidRequest

MAX_VALUE_CHARS = 60  # of a wrong value repeated in an error


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Temperature 0 is greedy; top_p 1 and top_k 0 are off; without a seed the choice is not repeatable."""

    max_tokens: int = 16
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()  # text ends before the first of them
    stop_token_ids: tuple[int, ...] = ()  # besides the checkpoint's own

    @classmethod
    def from_json(cls, document: bytes) -> Self:
        """Raises InvalidRequest naming the field, its value and its limit."""
        try:
            fields = _Fields.model_validate_json(document)
        except ValidationError as error:
            raise _translate(error) from error
        return cls(**dict(fields))


class _Fields(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    max_tokens: Annotated[int, Field(ge=1)] = 16
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    stop_token_ids: tuple[Annotated[int, Field(ge=0)], ...] = ()


def _translate(error: ValidationError) -> InvalidRequest:
    first = error.errors(include_url=False)[0]
    field = ".".join(["sampling", *map(str, first["loc"])])
    if first["type"] == "json_invalid":
        return InvalidRequest("sampling is not JSON", fix="send one JSON object in UTF-8")
    if first["type"] == "extra_forbidden":
        known = ", ".join(_Fields.model_fields)
        return InvalidRequest(f"unknown field {field[:MAX_VALUE_CHARS]}", limit=f"known are {known}", fix="remove it")
    return InvalidRequest(f"{field} = {_short(first['input'])}", limit=first["msg"], fix="correct the value")


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= MAX_VALUE_CHARS else text[: MAX_VALUE_CHARS - 1] + "…"
