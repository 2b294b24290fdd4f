"""The fields of an object in OpenAI's words: served, taken with one value that changes nothing, or refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from proteus.door import document
from proteus.door.document import shorten
from proteus.errors import InvalidRequest
from proteus.gateway.errors import UnsupportedField

FEW = 4  # entries of a list or an object that are written


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """Every field that OpenAI's reference knows of one object is in one of the three."""

    served: frozenset[str]
    neutral: Mapping[str, Any] = field(default_factory=dict)  # name -> the only value that is taken
    refused: frozenset[str] = frozenset()

    def read(self, given: Mapping[str, Any], at: str = "") -> dict[str, Any]:
        """What is served of the object at path `at`; null is as good as left out.

        Raises UnsupportedField for what only OpenAI serves, InvalidRequest for what nobody does.
        """
        asked = {name: value for name, value in given.items() if value is not None}
        for name in [name for name in asked if name not in self.served]:
            self._refuse(name, asked.pop(name), f"{at}.{name}" if at else name)
        return asked

    def _refuse(self, name: str, value: object, path: str) -> None:
        if name in self.refused:
            raise UnsupportedField(f"{path} is not supported", param=path, fix="leave the field out")
        if name not in self.neutral:
            raise unknown(path)
        only = self.neutral[name]
        if type(value) is not type(only) or value != only:
            raise UnsupportedField(
                f"this value of {path} is not supported",
                param=path,
                limit=f"only {written(only)}, which changes nothing",
                fix="leave the field out",
            )


def unknown(path: str) -> InvalidRequest:
    return wrong(f"unknown field {shorten(path)}", path, fix="correct its spelling or remove it; see docs/gateway.md")


def wrong(what: str, param: str, *, limit: str | None = None, fix: str) -> InvalidRequest:
    """The refusal of one field."""
    refusal = InvalidRequest(what, limit=limit, fix=fix)
    refusal.param = shorten(param)
    return refusal


def written(value: object) -> str:
    """A value of a field in an error: as JSON, shortened; of what is long only how long it is."""
    if isinstance(value, list | dict) and len(value) > FEW:
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value):,}"
    return document.written(value, ensure_ascii=False)
