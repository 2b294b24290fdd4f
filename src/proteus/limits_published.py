"""What a deployment tells of its limits: parameters of the models `chat` and `draw`, and back to tables.

No internal addresses, nothing about processes and threads. `proteus contract` prints it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from pydantic import Field

from proteus.limits import (
    AdmissionLimits,
    AudioLimits,
    Count,
    DrawLimits,
    ImageLimits,
    LimitTables,
    Section,
    TextLimits,
    Tiers,
    VideoLimits,
)

_Kind = TypeVar("_Kind", bound=Section)


class OfferedFetch(Section):
    """Pictures by URL, as far as a client needs to know; how the server's own network looks is not told."""

    enabled: bool = Field(description="whether pictures may be given by URL")
    hosts: list[str] = Field(description="allowed; `*.example.com` is any host below it")


class OfferedContext(Section):
    """The language model."""

    context_tokens: Count = Field(description="prompt and answer together, visual tokens included")


class Contract(Section):
    """What `chat` publishes: the limits a client has to keep."""

    image: ImageLimits
    video: VideoLimits
    audio: AudioLimits
    tiers: Tiers
    fetch: OfferedFetch
    text: TextLimits
    llm: OfferedContext
    admission: AdmissionLimits


class DrawContract(Section):
    """What `draw` publishes."""

    draw: DrawLimits


def contract_of(deployment: LimitTables) -> Contract:
    """The published part of what is read."""
    return Contract.model_validate(deployment, from_attributes=True)


def published(deployment: LimitTables) -> dict[str, str]:
    """Parameters of `chat`: dotted key -> text as it stands, anything else as JSON; what is not limited is left out."""
    return _parameters(contract_of(deployment))


def published_of_draw(limits: DrawLimits) -> dict[str, str]:
    """Parameters of `draw`, in the same form."""
    return _parameters(DrawContract(draw=limits))


def from_published(parameters: Mapping[str, str]) -> Contract:
    """The contract among a model's parameters, other parameters aside; raises ValueError where it is not whole."""
    tables: dict[str, Any] = {"admission": {"capacity": {}, "request": {}}}  # both may be without any limit
    return _contract(Contract, parameters, tables)


def draw_from_published(parameters: Mapping[str, str]) -> DrawContract:
    """The same of `draw`."""
    tables: dict[str, Any] = {"draw": {"admission": {"capacity": {}, "request": {}}}}
    return _contract(DrawContract, parameters, tables)


def _contract(kind: type[_Kind], parameters: Mapping[str, str], tables: dict[str, Any]) -> _Kind:
    for key, text in parameters.items():
        *path, name = key.split(".")
        if path and path[0] in kind.model_fields:
            table = tables
            for step in path:
                table = table.setdefault(step, {})
            table[name] = _value(text)
    return kind.model_validate(tables)


def _parameters(contract: Section) -> dict[str, str]:
    return dict(_flat(contract.model_dump(exclude_none=True)))


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value if isinstance(value, str) else json.dumps(value)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
