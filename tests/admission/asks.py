"""Small deployments and asks, and a clock that moves when told."""

from __future__ import annotations

from dataclasses import dataclass

from proteus.admission.admission import Admission
from proteus.admission.ask import Ask
from proteus.admission.queue import Ticket
from proteus.cost.vector import ResourceVector
from proteus.limits import AdmissionLimits, ClassQueue, ClassQueues, DrawAdmission, LatencyClass, Resources

CLASSES: tuple[LatencyClass, ...] = ("text", "media", "batch")


def limits_of(
    capacity: Resources,
    *,
    request: Resources | None = None,
    max_queue: int = 100,
    max_wait_ms: int = 30_000,
    weights: tuple[int, int, int] = (8, 4, 1),
) -> AdmissionLimits:
    text, media, batch = (ClassQueue(max_queue=max_queue, weight=weight) for weight in weights)
    return AdmissionLimits(
        capacity=capacity,
        request=request or Resources(),
        queues=ClassQueues(text=text, media=media, batch=batch),
        max_open_bytes=1,
        max_wait_ms=max_wait_ms,
    )


def ask_of(
    latency_class: LatencyClass = "media", tenant: str = "ann", deadline_s: float | None = None, **amounts: int
) -> Ask:
    vector = ResourceVector(**amounts)
    return Ask(vector=vector, latency_class=latency_class, tenant=tenant, model="chat", deadline_s=deadline_s)


@dataclass
class Clock:
    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Desk:
    """An Admission with its clock; remembers what was settled, in order."""

    def __init__(self, limits: AdmissionLimits | DrawAdmission) -> None:
        self.clock = Clock()
        self.settled: list[Ticket] = []
        self.admission = Admission(limits, clock_s=self.clock, settled=self.settled.append)

    def submit(self, latency_class: LatencyClass = "media", tenant: str = "ann", **amounts: int) -> Ticket:
        return self.admission.submit(ask_of(latency_class, tenant, **amounts))

    def held(self) -> list[Ticket]:
        """Admitted and not released, oldest first."""
        return [ticket for ticket in self.settled if is_held(ticket)]

    def wait(self, seconds: float) -> None:
        self.clock.now_s += seconds
        self.admission.advance()


def is_held(ticket: Ticket) -> bool:
    return ticket.reservation is not None and ticket.reservation.held


def release(ticket: Ticket) -> None:
    assert ticket.reservation is not None
    ticket.reservation.release()
