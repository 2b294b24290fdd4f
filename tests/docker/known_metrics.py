"""Every series that a Prometheus beside us can have, with its labels, and what an expression asks of them.

Ours are read from the code that declares them, so that a renamed metric fails where it is drawn or alerted on.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path

import promql_parser as promql

from proteus.deployment import Deployment
from proteus.door.observed import HISTOGRAMS
from proteus.gateway.gateway import Gateway
from proteus.gateway.order import Visit

SOURCE = Path(__file__).parents[2] / "src" / "proteus"
SCRAPED = frozenset({"job", "instance"})  # labels that a scrape adds
# Triton's own, by docs/user_guide/metrics.md of triton-inference-server/server; tests/server/test_dashboard.py asks a
# real server for those that need no GPU.
MODEL = frozenset({"model", "version"})
GPU = frozenset({"gpu_uuid"})
TRITON: Mapping[str, frozenset[str]] = {
    "nv_inference_request_success": MODEL,
    "nv_inference_request_failure": MODEL | {"reason"},
    "nv_inference_count": MODEL,
    "nv_inference_exec_count": MODEL,
    "nv_inference_request_duration_us": MODEL,
    "nv_inference_queue_duration_us": MODEL,
    "nv_inference_compute_infer_duration_us": MODEL,
    "nv_inference_pending_request_count": MODEL,
    "nv_cache_num_hits_per_model": MODEL,
    "nv_cache_num_misses_per_model": MODEL,
}
TRITON_ON_GPU: Mapping[str, frozenset[str]] = {
    "nv_gpu_utilization": GPU,
    "nv_gpu_memory_total_bytes": GPU,
    "nv_gpu_memory_used_bytes": GPU,
    "nv_gpu_power_usage": GPU,
    "nv_gpu_power_limit": GPU,
    "nv_energy_consumption": GPU,
}
PROMETHEUS: Mapping[str, frozenset[str]] = {"up": frozenset()}


def declared() -> dict[str, frozenset[str]]:
    """Families of ours that have one value, by the `…FIGURES` of the rooms: name and labels."""
    files = (*SOURCE.rglob("*figures.py"), SOURCE / "backend" / "memory.py")
    modules = [import_module(".".join(file.relative_to(SOURCE.parent).with_suffix("").parts)) for file in files]
    rows = [
        row for module in modules for name, rows in vars(module).items() if name.endswith("FIGURES") for row in rows
    ]
    return {row.name: frozenset({row.label} - {""}) for row in rows}


@functools.cache
def of_gateways() -> Mapping[str, frozenset[str]]:
    """Series of a gateway's operations port, asked of one that serves nobody."""
    deployment = Deployment.load(SOURCE.parents[1] / "deployments" / "demo.toml")
    settings = deployment.gateway.model_copy(update={"metering": None}) if deployment.gateway else None
    gateway = Gateway(deployment.model_copy(update={"gateway": settings}))
    visit = Visit(path="/", address="")
    with visit.watch.stage("receive"):
        gateway.metrics.ended(visit)
    gateway.metrics.ended(visit)
    series: dict[str, frozenset[str]] = {}
    for family in gateway.metrics.registry.collect():
        for sample in family.samples:
            series[sample.name] = frozenset(sample.labels)
        if not family.samples:
            name = family.name + ("_total" if family.type == "counter" else "")
            series[name] = frozenset(family._labelnames)  # type: ignore[attr-defined]
    return series


def known() -> dict[str, frozenset[str]]:
    """Name of each series and its labels, those of the scrape left out."""
    series = {**declared(), **TRITON, **TRITON_ON_GPU, **PROMETHEUS, **of_gateways()}
    for histogram in HISTOGRAMS:
        labels = frozenset(histogram.labels)
        series |= {f"{histogram.name}_sum": labels, f"{histogram.name}_count": labels}
        series[f"{histogram.name}_bucket"] = labels | {"le"}
    return series


def selectors(expression: str) -> Iterator[promql.VectorSelector]:
    """Every series that an expression asks for; ValueError when it is no PromQL."""
    yield from _selectors(promql.parse(expression))


def _selectors(node: promql.Expr) -> Iterator[promql.VectorSelector]:
    match node:
        case promql.VectorSelector():
            yield node
        case promql.MatrixSelector():
            yield node.vector_selector
        case promql.AggregateExpr() | promql.ParenExpr() | promql.UnaryExpr() | promql.SubqueryExpr():
            yield from _selectors(node.expr)
        case promql.BinaryExpr():
            yield from _selectors(node.lhs)
            yield from _selectors(node.rhs)
        case promql.Call():
            for argument in node.args:
                yield from _selectors(argument)


def wrong_in(expression: str, *, also: Mapping[str, frozenset[str]] | None = None) -> list[str]:
    """What it asks for that nobody tells; `also` are series of recording rules."""
    series = {**known(), **(also or {})}
    wrong = []
    for selector in selectors(expression):
        labels = series.get(selector.name)
        if labels is None:
            wrong.append(f"no series is named {selector.name}")
            continue
        asked = {matcher.name for matcher in selector.matchers.matchers} - {"__name__"}
        wrong += [f"{selector.name} has no label {name}" for name in sorted(asked - labels - SCRAPED)]
    return wrong
