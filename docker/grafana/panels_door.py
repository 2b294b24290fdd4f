"""Panels of what clients meet: requests, the time they take, admission."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from series import KIND, RATE, Panel, by_stage, now, quantiles, rate

MEAN_BY_STAGE = (
    f"sum by (stage)(rate(proteus_stage_seconds_sum{{{KIND}}}{RATE}))"
    f" / scalar(sum(rate(proteus_ttft_seconds_count{{{KIND}}}{RATE})))"
)

ROWS: Mapping[str, Sequence[Panel]] = {
    "Requests": (
        Panel(
            "Servers that answer",
            "short",
            [("answer", 'sum(up{job="proteus"})'), ("known", 'count(up{job="proteus"})')],
            "Scraped at their metrics port. A server that restarts is away for some seconds.",
        ),
        Panel(
            "Questions by outcome",
            "reqps",
            [("{{outcome}}", rate("proteus_requests_total", "outcome"))],
            "What was served, left, or refused by which error.",
            stacked=True,
        ),
        Panel(
            "Drawings by outcome",
            "reqps",
            [("{{outcome}}", rate("proteus_draw_requests_total", "outcome"))],
            "Requests to draw, by how they ended.",
            stacked=True,
        ),
        Panel(
            "Time to the first token",
            "s",
            quantiles("proteus_ttft_seconds"),
            "From arrival, by kind of request.",
        ),
        Panel(
            "Between two tokens",
            "s",
            quantiles("proteus_inter_token_seconds"),
            "The mean of each request, by kind of request.",
        ),
        Panel(
            "Time of a drawn picture by part",
            "s",
            [
                (
                    "{{stage}}",
                    f"{rate('proteus_draw_output_seconds_total', 'stage')}"
                    f" / scalar({rate('proteus_draw_images_total')})",
                )
            ],
            "Means that add up to the time from admission to the file.",
            stacked=True,
        ),
    ),
    "Where the time goes": (
        Panel("Mean time by stage", "s", [("{{stage}}", MEAN_BY_STAGE)], "Adds up to the whole answer.", stacked=True),
        Panel("Median by stage", "s", by_stage(50), "Of requests that had the stage: hits of caches have none."),
        Panel("95th percentile by stage", "s", by_stage(95), "Where the slow ones lose their time."),
    ),
    "Admission": (
        Panel(
            "Waiting to be admitted",
            "short",
            [
                ("{{latency_class}}", now("proteus_queue_depth", "latency_class")),
                ("draw {{latency_class}}", now("proteus_draw_queue_depth", "latency_class")),
            ],
            "By latency class. A queue that only grows is a server that is too small.",
            stacked=True,
        ),
        Panel(
            "Reserved, of the most ever held",
            "percentunit",
            [
                ("{{resource}}", f"{now('proteus_reserved', 'resource')} / {now('proteus_reserved_peak', 'resource')}"),
                (
                    "draw {{resource}}",
                    f"{now('proteus_draw_reserved', 'resource')} / {now('proteus_draw_reserved_peak', 'resource')}",
                ),
            ],
            "Near 100 % while requests wait: that resource is the bottleneck.",
        ),
        Panel(
            "Admitted and refused",
            "reqps",
            [
                ("admitted {{latency_class}}", rate("proteus_admitted_total", "latency_class")),
                ("refused: {{reason}}", rate("proteus_refused_total", "reason")),
                ("draw admitted {{latency_class}}", rate("proteus_draw_admitted_total", "latency_class")),
                ("draw refused: {{reason}}", rate("proteus_draw_refused_total", "reason")),
            ],
            "By latency class, and by error code.",
        ),
    ),
}
