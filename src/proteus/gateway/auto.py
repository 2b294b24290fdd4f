"""Which model and which tier `auto` takes, by one rule without chance. docs/gateway.md states it."""

from __future__ import annotations

from dataclasses import dataclass

from proteus.limits import TierName


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What was taken and why; `proteus.auto` of an answer."""

    model: str
    tier: TierName | None  # of pictures whose part names none; None: there are no such pictures
    because: str
