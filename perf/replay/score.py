"""Results -> numbers: latencies, throughput and goodput in total and by modality, size, tenant and class.

Percentiles are by nearest rank: the p-th is the least value that p % of all values do not exceed. No interpolation, so
each is a time that some request had.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perf.replay.results import CANCELLED, OK, Result
from perf.replay.trace import MODALITIES, Header, LatencyClass, Objective
from proteus.cost.buckets import SIZES_MP
from proteus.errors import (
    DeadlineExceeded,
    FetchFailed,
    InvalidMedia,
    InvalidPicture,
    InvalidRequest,
    MediaTooLarge,
    PromptTooLong,
    QueueFull,
)
from proteus.stages import STAGES

# The server's own "no": it is up, and the request is not served. Any other error is a failure.
REFUSALS = {
    kind.code
    for kind in (
        DeadlineExceeded,
        FetchFailed,
        InvalidMedia,
        InvalidPicture,
        InvalidRequest,
        MediaTooLarge,
        PromptTooLong,
        QueueFull,
    )
} | {"media_not_supported"}
Objectives = Mapping[LatencyClass, Objective]
LATE_MS = 20.0  # of the sender's p99, from which on the report warns


def kind_of(outcome: str) -> str:
    """ "ok", "cancelled", "refused" or "failed"."""
    if outcome in (OK, CANCELLED):
        return outcome
    return "refused" if outcome in REFUSALS else "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    count: int
    p50: float
    p95: float
    p99: float
    mean: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Percentiles | None:
        """None of nothing."""
        ordered = sorted(values)
        if not ordered:
            return None
        return cls(
            count=len(ordered),
            p50=percentile(ordered, 50),
            p95=percentile(ordered, 95),
            p99=percentile(ordered, 99),
            mean=sum(ordered) / len(ordered),
            max=ordered[-1],
        )


def percentile(ordered: Sequence[float], p: float) -> float:
    """By nearest rank; `ordered` is ascending and not empty."""
    return ordered[max(0, math.ceil(p / 100 * len(ordered)) - 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Requests that have something in common. Times are of those that ended ok."""

    requests: int
    ok: int
    cancelled: int
    refused: int
    failed: int
    downscaled: int  # requests with a picture that the server made smaller
    ttft_ms: Percentiles | None  # from the planned arrival to the first token at the client; not of draw
    inter_token_ms: Percentiles | None  # of all gaps of all answers
    e2e_ms: Percentiles | None  # from the planned arrival to the end
    throughput_per_s: float
    output_tokens_per_s: float
    goodput_per_s: float  # ended ok and kept the objective of their class
    goodput_share: float | None  # of all but the cancelled; None without any

    @classmethod
    def of(cls, results: Sequence[Result], objectives: Objectives, seconds: float) -> Group:
        ok = [result for result in results if result.is_ok]
        kinds = Counter(kind_of(result.outcome) for result in results)
        good = sum(keeps(result, objectives.get(result.latency_class)) for result in ok)
        judged = len(results) - kinds["cancelled"]
        return cls(
            requests=len(results),
            ok=len(ok),
            cancelled=kinds["cancelled"],
            refused=kinds["refused"],
            failed=kinds["failed"],
            downscaled=sum(result.downscaled > 0 for result in results),
            ttft_ms=Percentiles.of(first for result in ok if (first := result.to_first_ms) is not None),
            inter_token_ms=Percentiles.of(gap for result in ok for gap in result.gaps_ms),
            e2e_ms=Percentiles.of(result.to_end_ms for result in ok),
            throughput_per_s=len(ok) / seconds,
            output_tokens_per_s=sum(result.usage.get("output_tokens", 0) for result in ok) / seconds,
            goodput_per_s=good / seconds,
            goodput_share=good / judged if judged else None,
        )


def keeps(result: Result, objective: Objective | None) -> bool:
    """Whether an answer that ended ok was as fast as its class wants."""
    if objective is None:
        return True
    if result.modality == "draw":
        return objective.draw_ms is None or result.to_end_ms <= objective.draw_ms
    measured = ((result.to_first_ms, objective.ttft_ms), (result.inter_token_ms, objective.inter_token_ms))
    return all(value is None or most is None or value <= most for value, most in measured)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    lookups: int
    hits: int
    saved_ms: float
    tokens: int  # of the prefix cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    profile: str
    seed: int
    lines: int  # of the trace
    missing: int  # lines without a result: the run was stopped
    seconds: float  # from the begin of the clock to the end of the last answer; rates are over it
    lateness_ms: Percentiles | None  # of the sender
    is_late: bool
    total: Group
    by_modality: Mapping[str, Group]
    by_size: Mapping[str, Group]
    by_tenant: Mapping[str, Group]
    by_class: Mapping[str, Group]
    outcomes: Mapping[str, int]  # every outcome, errors by code
    downscaled_pictures: int
    caches: Mapping[str, Cache]
    stages_ms: Mapping[str, Mapping[str, float]]  # by modality: means of what ended ok, a stage not passed is 0
    server_ttft_ms: Percentiles | None  # what the server says of the same requests
    max_open: int  # requests at once


def summarise(header: Header, results: Sequence[Result]) -> Summary:
    seconds = max((result.end_s for result in results), default=0.0) or header.seconds
    lateness = Percentiles.of(result.lateness_ms for result in results)

    def by(key: Callable[[Result], str | None], order: Callable[[str], Any]) -> dict[str, Group]:
        names = sorted({name for result in results if (name := key(result)) is not None}, key=order)
        return {
            name: Group.of([result for result in results if key(result) == name], header.objectives, seconds)
            for name in names
        }

    return Summary(
        profile=header.profile,
        seed=header.seed,
        lines=header.requests,
        missing=header.requests - len(results),
        seconds=seconds,
        lateness_ms=lateness,
        is_late=lateness is not None and lateness.p99 > LATE_MS,
        total=Group.of(results, header.objectives, seconds),
        by_modality=by(lambda result: result.modality, list(MODALITIES).index),  # type: ignore[arg-type]
        by_size=by(lambda result: result.size, size_order),
        by_tenant=by(lambda result: result.tenant, str),
        by_class=by(lambda result: result.latency_class, str),
        outcomes=dict(Counter(result.outcome for result in results).most_common()),
        downscaled_pictures=sum(result.downscaled for result in results),
        caches=caches(results),
        stages_ms=mean_stages(results),
        server_ttft_ms=Percentiles.of(result.ttft_ms for result in results if result.is_ok and result.ttft_ms),
        max_open=max((number for _, number in open_over_time(results)), default=0),
    )


def size_order(size: str) -> tuple[int, float, float]:
    """Size buckets of pictures first, the least first; then sizes to draw, by area."""
    labels = [f"{one:g} MP" for one in SIZES_MP]
    if "x" in size:
        width_px, height_px = map(int, size.split("x"))
        return 2, width_px * height_px, width_px
    return (0, labels.index(size), 0) if size in labels else (1, 0, 0)


def caches(results: Sequence[Result]) -> dict[str, Cache]:
    names = list(dict.fromkeys(name for result in results for name in result.caches))

    def total(name: str, field: str) -> float:
        return sum(result.caches.get(name, {}).get(field, 0) for result in results)

    return {
        name: Cache(
            lookups=int(total(name, "lookups")),
            hits=int(total(name, "hits")),
            saved_ms=total(name, "saved_ms"),
            tokens=int(total(name, "tokens")),
        )
        for name in names
    }


def mean_stages(results: Sequence[Result]) -> dict[str, dict[str, float]]:
    """Stages add up to the mean total; `total` itself is left out."""
    means: dict[str, dict[str, float]] = {}
    for modality in MODALITIES:
        ok = [result for result in results if result.is_ok and result.modality == modality and result.stages_ms]
        stages = dict.fromkeys(stage for result in ok for stage in result.stages_ms if stage != "total")
        if ok:
            means[modality] = {
                stage: sum(result.stages_ms.get(stage, 0.0) for result in ok) / len(ok) for stage in stages
            }
    return means


def in_order(stages: Iterable[str]) -> list[str]:
    """Each once: those of `chat` as they follow each other; those of `draw` as its report names them."""
    found = list(dict.fromkeys(stages))
    order: list[str] = list(STAGES)
    return sorted(found, key=order.index) if set(found) <= set(order) else found


def open_over_time(results: Sequence[Result], *, until_first: bool = False) -> list[tuple[float, int]]:
    """Moments and how many requests were open from then on, or those of `chat` that had no first token yet."""
    steps = []
    for result in results:
        if until_first and result.modality == "draw":
            continue
        over_s = result.first_s if until_first and result.first_s is not None else result.end_s
        steps += [(result.sent_s, 1), (over_s, -1)]
    counted, number = [], 0
    for moment_s, step in sorted(steps):
        number += step
        counted.append((moment_s, number))
    return counted
