"""How long admission takes to decide, by the number of requests that wait already.

    python -m perf.admission [--releases 5000] [--out perf/results/admission.json]

Two decisions: `release`, of a finished request, with the admission of all those that fit then; `submit`, of one that
comes. As many come as go, so the queues keep their length. Microseconds of processor time of all decisions, and of wall
time of those during which no other program took the core. The shorter the queue, the more are admitted as they come and
the fewer when another is released, so growth shows in the sum over both for one request, `request_cpu_us`, a mean.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import proteus
from proteus.admission.admission import Admission
from proteus.admission.ask import Ask
from proteus.admission.queue import Ticket
from proteus.cost.vector import ResourceVector
from proteus.limits import AdmissionLimits, ClassQueue, ClassQueues, LatencyClass, Resources

QUEUED = (10, 100, 1_000, 10_000)
TENANTS = {"few tenants": 8, "a tenant each": 10**9}
CAPACITY = Resources(
    requests=64, media_bytes=2**27, decoded_pixels=2 * 10**8, visual_tokens=16_384, text_tokens=65_536, kv_bytes=2**30
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Of one decision."""

    wall_us: float
    cpu_us: float
    preempted: bool  # another program had the core meanwhile


def limits_of(max_queue: int) -> AdmissionLimits:
    """Room for whatever waits: nothing is refused while measuring."""
    text, media, batch = (ClassQueue(max_queue=max_queue, weight=weight) for weight in (8, 4, 1))
    queues = ClassQueues(text=text, media=media, batch=batch)
    return AdmissionLimits(capacity=CAPACITY, request=Resources(), queues=queues, max_open_bytes=1, max_wait_ms=10**9)


def ask_of(chance: random.Random, num_tenants: int) -> Ask:
    """Text, pictures and sound in turn by chance, small and large."""
    latency_class: LatencyClass = chance.choice(("text", "media", "batch"))
    media: dict[str, int] = {}
    if latency_class != "text":
        media = {"items": 1, "media_bytes": chance.randrange(10**4, 10**7), "visual_tokens": chance.randrange(64, 4096)}
        if chance.random() < 0.7:
            media["decoded_pixels"] = chance.randrange(10**5, 10**8)
        else:
            media["media_ms"] = chance.randrange(10**3, 30_000)
    text = {"text_tokens": chance.randrange(1, 2000), "kv_bytes": chance.randrange(10**5, 10**7)}
    vector = ResourceVector(requests=1, **media, **text)
    tenant = f"tenant {chance.randrange(num_tenants)}"
    return Ask(vector=vector, latency_class=latency_class, tenant=tenant, model="chat")


class Bench:
    """An admission with `num_queued` waiting; `admitted` is released in order of admission."""

    def __init__(self, num_queued: int, num_tenants: int) -> None:
        self._chance, self._num_tenants, self._num_queued = random.Random(num_queued), num_tenants, num_queued
        self._admitted: deque[Ticket] = deque()
        limits = limits_of(2 * num_queued + 100)
        self._admission = Admission(limits, clock_s=time.monotonic, settled=self._admitted.append)
        while self._num_waiting() < num_queued:
            self._admission.submit(ask_of(self._chance, num_tenants))

    def _num_waiting(self) -> int:
        return sum(self._admission.snapshot().queued.values())

    def times_us(self, num_releases: int) -> dict[str, list[Times]]:
        """Of each decision, while as many come as go."""
        times: dict[str, list[Times]] = {"submit": [], "release": []}
        for _ in range(num_releases):
            reservation = self._admitted.popleft().reservation
            if reservation is not None:
                times["release"].append(timed(reservation.release))
            while self._num_waiting() < self._num_queued:
                times["submit"].append(timed(self._admission.submit, ask_of(self._chance, self._num_tenants)))
        return times


def timed(call: Callable[..., object], *arguments: object) -> Times:
    lost = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
    wall_ns, cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
    call(*arguments)
    cpu_ns, wall_ns = time.thread_time_ns() - cpu_ns, time.perf_counter_ns() - wall_ns
    preempted = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw != lost
    return Times(wall_us=wall_ns / 1000, cpu_us=cpu_ns / 1000, preempted=preempted)


def summary(times: list[Times]) -> dict[str, float]:
    undisturbed = [one.wall_us for one in times if not one.preempted]
    row: dict[str, float] = {"decisions": len(times), "preempted": len(times) - len(undisturbed)}
    for clock, values in (("wall_us", undisturbed), ("cpu_us", [one.cpu_us for one in times])):
        cuts = statistics.quantiles(values, n=100, method="inclusive")
        row |= {f"median_{clock}": round(cuts[49], 1), f"p99_{clock}": round(cuts[98], 1)}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--releases", type=int, default=5000)
    parser.add_argument("--out", type=Path, default=Path("perf/results/admission.json"))
    arguments = parser.parse_args()

    decisions, requests = [], []
    for tenants, num_tenants in TENANTS.items():
        for num_queued in QUEUED:
            times = Bench(num_queued, num_tenants).times_us(arguments.releases)
            for decision, every in times.items():
                decisions.append({"decision": decision, "tenants": tenants, "queued": num_queued} | summary(every))
                print(decisions[-1])
            both = sum(one.cpu_us for every in times.values() for one in every) / arguments.releases
            requests.append({"tenants": tenants, "queued": num_queued, "request_cpu_us": round(both, 1)})
            print(requests[-1])
    report = {
        "command": f"python -m perf.admission --releases {arguments.releases}",
        "versions": {"proteus": proteus.__version__, "python": platform.python_version()},
        "cores": os.cpu_count(),
        "load_1_min": round(os.getloadavg()[0], 1),
        "decisions": decisions,
        "requests": requests,
    }
    arguments.out.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
