"""Panels of the door for everyone: what clients get, what waits, servers, tenants. Of all gateways together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from series import RATE, Panel


def rate(name: str, by: str = "") -> str:
    return f"sum{f' by ({by})' if by else ''}(rate(proteus_gateway_{name}{RATE}))"


def now(name: str, by: str = "") -> str:
    return f"sum{f' by ({by})' if by else ''}(proteus_gateway_{name})"


def quantile(q: int) -> str:
    buckets = f"sum by (le, endpoint)(rate(proteus_gateway_request_seconds_bucket{RATE}))"
    return f"histogram_quantile({q / 100}, {buckets})"


MEAN_BY_STAGE = f"{rate('stage_seconds_sum', 'stage')} / {rate('stage_seconds_count', 'stage')}"
SLOW_STAGES = f"histogram_quantile(0.95, sum by (le, stage)(rate(proteus_gateway_stage_seconds_bucket{RATE})))"

ROWS: Mapping[str, Sequence[Panel]] = {
    "Gateway": (
        Panel(
            "Answers of the gateway by outcome",
            "reqps",
            [("{{outcome}}", rate("requests_total", "outcome"))],
            "Served, left by the client, or refused by which error.",
            stacked=True,
        ),
        Panel(
            "Answers of the gateway by model",
            "reqps",
            [("{{endpoint}} {{model}}", rate("requests_total", "endpoint, model"))],
            "What is asked for; no model where a request came to none.",
            stacked=True,
        ),
        Panel(
            "Time of a whole answer",
            "s",
            [(f"{{{{endpoint}}}} p{q}", quantile(q)) for q in (50, 95)],
            "From the head of a request to the end of its answer; a stream is as long as it is read.",
        ),
        Panel(
            "Time in the gateway itself",
            "s",
            [("{{stage}} mean", MEAN_BY_STAGE), ("{{stage}} p95", SLOW_STAGES)],
            "Receiving, planning, the check of contents, waiting for room.",
        ),
        Panel(
            "Waiting for room in a pool",
            "short",
            [("{{pool}}", now("waiting_requests", "pool"))],
            "A queue that only grows is a pool that is too small.",
            stacked=True,
        ),
        Panel(
            "Servers of a pool",
            "short",
            [
                ("{{pool}} up", "sum by (pool)(proteus_gateway_server_up)"),
                ("{{pool}} known", "count by (pool)(proteus_gateway_server_up)"),
            ],
            "That get requests, and that are known, added up over the gateways.",
        ),
        Panel(
            "In hand by server",
            "percentunit",
            [("{{server}} {{pool}}", now("server_outstanding", "server, pool"))],
            "Outstanding cost in parts of a server's capacity; even, where the router does well.",
        ),
        Panel(
            "Given to another server",
            "cps",
            [("{{server}}", rate("server_retries_total", "server"))],
            "By the server that failed; their clients noticed nothing.",
        ),
        Panel(
            "Open at the gateway",
            "short",
            [("requests", now("open_requests")), ("connections", now("connections"))],
            "Connections that are idle cost little; requests hold bytes.",
        ),
        Panel(
            "Bytes held by open requests",
            "bytes",
            [("held", now("open_bytes"))],
            "Bodies and pictures, until their answers end.",
        ),
        Panel(
            "Turned away at the door",
            "cps",
            [
                ("connections: {{reason}}", rate("connections_refused_total", "reason")),
                ("keys that are none", rate("bad_keys_total")),
            ],
            "Before anything was read: too many connections, heads that never end, guessed keys.",
        ),
        Panel(
            "Checks of contents",
            "cps",
            [("{{when}}: {{verdict}}", rate("moderation_total", "when, verdict"))],
            "Before encoding and after generation.",
        ),
    ),
    "Tenants": (
        Panel(
            "Price by tenant",
            "short",
            [("{{tenant}} {{currency}}", f"3600 * {rate('price_total', 'tenant, currency')}")],
            "An hour, at the rate of now.",
            stacked=True,
        ),
        Panel(
            "Used by tenant",
            "cps",
            [("{{tenant}} {{resource}}", rate("tenant_usage_total", "tenant, resource"))],
            "A second, as reports count it.",
        ),
        Panel(
            "Over a budget",
            "cps",
            [("{{tenant}} {{resource}}", rate("budget_refusals_total", "tenant, resource"))],
            "Refused, by the resource that was short.",
        ),
        Panel(
            "Lines of the metering log",
            "cps",
            [("written", rate("metering_lines_total")), ("lost", rate("metering_errors_total"))],
            "One for each request of a tenant. A lost one is missing in every sum.",
        ),
    ),
}
