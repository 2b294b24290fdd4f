"""Whether a server's own figures agree with each other, with its limits, and with what its clients saw."""

from __future__ import annotations

import re
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from perf.soak_kinds import Tally
from proteus.deployment import Deployment
from proteus.launcher import Server

Figures = Mapping[str, float]  # `name{labels}` as on the metrics port -> value
TOLD_WITHIN_S = 30.0  # figures are told once a second
HELD = (
    "proteus_reserved{",
    "proteus_queue_depth{",
    "proteus_llm_running{",
    "proteus_llm_waiting{",
    'proteus_llm_kv_bytes{state="reserved"}',
    'proteus_llm_kv_bytes{state="used"}',
    "proteus_draw_reserved{",
    "proteus_draw_queue_depth{",
    "proteus_draw_live",
    "proteus_draw_waiting{",
    "nv_inference_pending_request_count{",
)
CACHES = ("processor", "encoder", "prefix")
COMPLETE = ("stop", "length")


def read(server: Server) -> Figures:
    with urllib.request.urlopen(server.ports.metrics_url, timeout=10) as response:
        lines = response.read().decode().splitlines()
    found = (re.fullmatch(r"((?:proteus|nv_inference)_\S+?(?:\{.*\})?) (\S+)", line) for line in lines)
    return {match[1]: float(match[2]) for match in found if match is not None}


def read_when_idle(server: Server) -> Figures:
    """As they are once nothing is held and nothing changes any more; else the last, which `still_held` complains of."""
    return read_when(server, lambda now: not still_held(now))


def read_when(server: Server, holds: Callable[[Figures], bool]) -> Figures:
    """Once they do not change any more and `holds`; else the last."""
    last_s = time.monotonic() + TOLD_WITHIN_S
    before: Figures = {}
    while time.monotonic() < last_s:
        now = read(server)
        if now == before and holds(now):
            break
        before = now
        time.sleep(1.5)
    return now


def still_held(now: Figures) -> list[str]:
    held = [f"{name} is {value:g}" for name, value in now.items() if name.startswith(HELD) and value]
    untold = [f"{family} is not told" for family in HELD if not any(name.startswith(family) for name in now)]
    return held + untold


def of(now: Figures, family: str) -> float:
    """All values of a family together; 0 where it has none yet."""
    return sum(value for name, value in now.items() if name.partition("{")[0] == family)


def by_label(now: Figures, family: str) -> dict[str, float]:
    """Of a family with one label, by its value."""
    found = ((re.fullmatch(rf'{family}\{{\w+="(.*)"\}}', name), value) for name, value in now.items())
    return {match[1]: value for match, value in found if match is not None}


def cache_bytes(now: Figures, cache: str) -> tuple[float, float]:
    """What it holds, and the most that it may; 0 and 0 of one that is not told."""
    states = by_label(now, f"proteus_{cache}_cache_bytes")
    return states.get("held", 0.0), states.get("allocated", states.get("max", 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """Figures when the server was idle, and what the clients had seen by then."""

    figures: Figures
    choices: Mapping[str, int]
    unseen_choices: int
    images: int

    @classmethod
    def close(cls, server: Server, tally: Tally) -> Books:
        return cls(
            figures=read_when_idle(server),
            choices=dict(tally.choices),
            unseen_choices=tally.unseen_choices,
            images=tally.images,
        )

    def since(self, before: Books) -> Books:
        """What was counted between the two; of gauges this says nothing."""
        figures = {name: value - before.figures.get(name, 0.0) for name, value in self.figures.items()}
        return replace(
            self,
            figures=figures,
            choices={reason: self.choices.get(reason, 0) - before.choices.get(reason, 0) for reason in self.choices},
            unseen_choices=self.unseen_choices - before.unseen_choices,
            images=self.images - before.images,
        )


def faults(before: Books, after: Books, deployment: Deployment) -> list[str]:
    """What does not add up, in words; nothing where all is consistent."""
    now = after.figures
    return [
        *still_held(now),
        *_cache_faults(now),
        *_peak_faults(now, deployment),
        *_count_faults(after.since(before)),
        *(f"{name} is below 0" for name, value in now.items() if value < 0 and "saved_seconds" not in name),
    ]


def _cache_faults(now: Figures) -> Iterator[str]:
    for cache in CACHES:
        family = f"proteus_{cache}_cache"
        lookups, hits = of(now, f"{family}_lookups_total"), of(now, f"{family}_hits_total")
        if hits > lookups:
            yield f"the {cache} cache had {hits:g} hits in {lookups:g} lookups"
        held_bytes, most_bytes = cache_bytes(now, cache)
        if held_bytes > most_bytes:
            yield f"the {cache} cache holds {held_bytes:g} bytes of {most_bytes:g}"
        if collisions := of(now, f"{family}_collisions_total"):
            yield f"the {cache} cache had {collisions:g} collisions of 256 bits"


def _peak_faults(now: Figures, deployment: Deployment) -> Iterator[str]:
    limits = [("proteus_reserved_peak", deployment.admission.capacity)]
    if deployment.draw is not None:
        limits.append(("proteus_draw_reserved_peak", deployment.draw.admission.capacity))
    for family, capacity in limits:
        for resource, peak in by_label(now, family).items():
            limit = getattr(capacity, resource, None)
            if limit is not None and peak > limit:
                yield f"{family} of {resource} is {peak:g}, over {limit:,}"
    if of(now, "proteus_patches_used_total") > of(now, "proteus_patches_allocated_total"):
        yield "more patches are used than allocated"


def _count_faults(period: Books) -> Iterator[str]:
    figures = period.figures
    ended = by_label(figures, "proteus_llm_ended_total")
    for reason in COMPLETE:
        seen, told = period.choices.get(reason, 0), ended.get(reason, 0.0)
        if not seen <= told <= seen + period.unseen_choices:
            yield f"{told:g} answers ended by {reason}; clients saw {seen}, and left {period.unseen_choices}"
    sent, unsent = of(figures, "proteus_draw_images_total"), of(figures, "proteus_draw_unsent_images_total")
    drawn = by_label(figures, "proteus_draw_ended_total").get("done", 0.0)
    if drawn != sent + unsent:
        yield f"{drawn:g} pictures were drawn, {sent:g} sent and {unsent:g} not"
    if period.images > sent:
        yield f"clients got {period.images} pictures of {sent:g} sent"
