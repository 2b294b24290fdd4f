"""What a request asks for, and the limits that refuse it whatever is free."""

from __future__ import annotations

from dataclasses import dataclass

from proteus.cost.vector import ResourceVector
from proteus.errors import MediaTooLarge
from proteus.limits import AdmissionLimits, DrawAdmission, LatencyClass, Resources

LEAST_COST = 1e-6  # of a request that needs nothing limited, so that any number of them still costs something
FIXES = {
    "requests": "ask for fewer answers (n)",
    "text_tokens": "send less text",
    "output_tokens": "ask for fewer tokens",
    "kv_bytes": "send less, or ask for fewer tokens",
    "images": "ask for fewer pictures (n)",
    "evaluations": "ask for fewer steps or pictures, or set guidance to 1",
    "token_passes": "ask for fewer steps, or fewer or smaller pictures",
}
FEWER_MEDIA = "send fewer or smaller media"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request as admission sees it; ValueError for an amount below zero."""

    vector: ResourceVector
    latency_class: LatencyClass
    tenant: str
    model: str  # named in refusals; all models of a deployment share one ledger
    deadline_s: float | None = None  # on admission's clock
    weight: int = 1  # of the tenant's share, while others wait as well

    def __post_init__(self) -> None:
        for name, value in self.vector.named():
            if value < 0:
                raise ValueError(f"{name} = {value} is below zero")


def refuse_what_never_fits(ask: Ask, limits: AdmissionLimits | DrawAdmission, *, table: str) -> None:
    """MediaTooLarge for a request that no empty server would take."""
    refuse_if_over(ask, limits.request, table=f"{table}.request")
    refuse_if_over(ask, limits.capacity, table=f"{table}.capacity")


def refuse_if_over(ask: Ask, limits: Resources, *, table: str) -> None:
    """MediaTooLarge for the first resource of which `ask` alone needs more than `table` of the file allows."""
    for name, limit in limits.named():
        value = getattr(ask.vector, name)
        if value > limit:
            raise MediaTooLarge(
                f"the request to {ask.model} needs {name} = {value:,}",
                limit=f"[{table}] {name} = {limit:,}",
                fix=FIXES.get(name, FEWER_MEDIA),
            )


def cost_of(vector: ResourceVector, capacity: Resources) -> float:
    """Dominant share: the largest part of any limited resource that `vector` takes, in 0 … 1.

    Ghodsi et al., "Dominant Resource Fairness", NSDI 2011.
    """
    return max((getattr(vector, name) / limit for name, limit in capacity.named()), default=0.0) or LEAST_COST
