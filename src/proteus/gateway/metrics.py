"""What the gateway counts, as Prometheus text. Every owner keeps plain numbers; only here have they these names.

Labels are bounded: endpoints, stages and outcomes by the code, models, servers and tenants by the files.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from proteus.gateway.errors import STATUS_OF
from proteus.gateway.http.connections import Connections
from proteus.gateway.order import CLIENT_GONE, SERVED, Visit

if TYPE_CHECKING:
    from proteus.gateway.gateway import Gateway

PREFIX = "proteus_gateway_"
CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
BUCKETS_S = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
ENDPOINTS = {
    "/v1/chat/completions": "chat",
    "/v1/images/generations": "images",
    "/v1/cost": "cost",
    "/v1/contract": "contract",
    "/v1/models": "models",
}
MAX_AT_HAND = 256  # of a family
SUMS = ("transfer", "total")  # of a stopwatch, no stages
OUTCOMES = {SERVED, CLIENT_GONE, *STATUS_OF}
Rows = Iterable[tuple[tuple[str, ...], float]]
Family = CounterMetricFamily | GaugeMetricFamily


class Metrics:
    """Of one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a line of each series that says when it began
        self.registry = CollectorRegistry(auto_describe=False)
        self._requests = Counter(
            f"{PREFIX}requests",
            "Requests that ended, by how: served, client_gone or the code of an error",
            ("endpoint", "model", "outcome"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            f"{PREFIX}request_seconds",
            "From the head of a request to the end of its answer",
            ("endpoint",),
            buckets=BUCKETS_S,
            registry=self.registry,
        )
        self._stages = Histogram(
            f"{PREFIX}stage_seconds",
            "Stages of a request in the gateway itself",
            ("stage",),
            buckets=BUCKETS_S,
            registry=self.registry,
        )
        # A series by its labels, at hand: to look for it takes longer than to count.
        self._requests_of = lru_cache(MAX_AT_HAND)(self._requests.labels)
        self._seconds_of = lru_cache(MAX_AT_HAND)(self._seconds.labels)
        self._stages_of = lru_cache(MAX_AT_HAND)(self._stages.labels)
        self.registry.register(_Figures(gateway))

    def ended(self, visit: Visit) -> None:
        endpoint = endpoint_of(visit.path)
        model = "" if visit.order is None else visit.order.model
        outcome = visit.outcome if visit.outcome in OUTCOMES else "internal"
        self._requests_of(endpoint, model, outcome).inc()
        self._seconds_of(endpoint).observe(time.monotonic() - visit.arrived_s)
        for stage, ms in visit.watch.report_ms().items():
            if stage not in SUMS:
                self._stages_of(stage).observe(ms / 1e3)

    def refused(self, path: str, code: str) -> None:
        """Before it became a visit."""
        self._requests_of(endpoint_of(path), "", code).inc()

    def text(self) -> bytes:
        return generate_latest(self.registry)


def endpoint_of(path: str) -> str:
    """A word of few, whatever the path."""
    return ENDPOINTS.get(path) or ("models" if path.startswith("/v1/models/") else "other")


class _Figures(Collector):
    """Asked when somebody looks."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def collect(self) -> Iterator[Family]:
        yield from self._own()
        yield from self._of_servers()
        yield from self._of_tenants()

    def _own(self) -> Iterator[Family]:
        gateway = self._gateway
        seats, connections = gateway.seats.figures(), gateway.connections
        yield _gauge("open_requests", "Requests that are open", (), [((), gateway.visits.open)])
        yield _gauge("open_bytes", "Bytes that open requests hold", (), [((), seats["open_bytes"])])
        yield _gauge("connections", "Connections that are open", (), [((), connections.open)])
        yield _gauge("draining", "1 from when the gateway was told to stop", (), [((), float(gateway.visits.draining))])
        yield _counter(
            "connections_refused",
            "Connections refused or cut off, by reason",
            ("reason",),
            _by_reason(connections),
        )
        yield _counter("bad_keys", "API keys that were none", (), [((), gateway.tenants.figures()["bad_keys"])])

    def _of_servers(self) -> Iterator[Family]:
        router, labels = self._gateway.router, ("server", "pool")
        figures = router.figures()
        waiting = self._gateway.shares.figures()
        yield _gauge("waiting_requests", "Requests that wait for room", ("pool",), _one_label(waiting.items()))
        yield _gauge(
            "server_up", "1 where a server gets requests", labels, [((one.server, one.pool), one.up) for one in figures]
        )
        yield _gauge(
            "server_outstanding",
            "What a server has in hand, in parts of its capacity",
            labels,
            [((one.server, one.pool), one.outstanding_cost) for one in figures],
        )
        yield _counter(
            "server_retries",
            "Requests given to another server, by the one that failed",
            ("server",),
            _one_label(router.retries().items()),
        )

    def _of_tenants(self) -> Iterator[Family]:
        gateway, labels = self._gateway, ("tenant", "resource")
        metering, tenants = gateway.metering.figures(), gateway.tenants.figures()
        yield _counter("budget_refusals", "Refused for a tenant's budget", labels, gateway.budgets.figures().items())
        yield _counter("tenant_usage", "What tenants used", labels, gateway.metering.usage().items())
        yield _counter("price", "Price of what was used", ("tenant", "currency"), gateway.metering.prices().items())
        yield _counter("metering_lines", "Lines of the metering log", (), [((), metering["lines"])])
        yield _counter("metering_errors", "Lines that were lost", (), [((), metering["errors"])])
        yield _counter(
            "moderation",
            "Checks of contents, by what came of them",
            ("verdict", "when"),
            gateway.moderation.figures().items(),
        )
        yield _gauge(
            "tenants_file_broken", "1 while the tenants file cannot be used", (), [((), tenants["file_broken"])]
        )


def _by_reason(connections: Connections) -> Rows:
    return _one_label(connections.refused.items())


def _one_label(pairs: Iterable[tuple[str, float]]) -> Rows:
    return [((label,), value) for label, value in pairs]


def _gauge(name: str, meaning: str, labels: tuple[str, ...], rows: Rows) -> Family:
    return _filled(GaugeMetricFamily(PREFIX + name, meaning, labels=labels), rows)


def _counter(name: str, meaning: str, labels: tuple[str, ...], rows: Rows) -> Family:
    return _filled(CounterMetricFamily(PREFIX + name, meaning, labels=labels), rows)


def _filled(family: Family, rows: Rows) -> Family:
    for labels, value in rows:
        family.add_metric(labels, float(value))
    return family
