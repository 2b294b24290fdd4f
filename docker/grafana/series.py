"""What a panel is, and the PromQL that most panels are made of. `$…` are variables of the dashboard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

HERE_ONLY = 'instance=~"$instance"'
KIND = f'{HERE_ONLY},modality=~"$modality"'
RATE = "[$__rate_interval]"


@dataclass(frozen=True, slots=True)
class Panel:
    """`series` are pairs of legend and PromQL."""

    title: str
    unit: str
    series: Sequence[tuple[str, str]]
    about: str
    stacked: bool = False


def rate(name: str, by: str = "", also: str = "") -> str:
    """Increase a second of a counter, over all servers that are shown."""
    grouped = f" by ({by})" if by else ""
    return f"sum{grouped}(rate({name}{{{HERE_ONLY}{also}}}{RATE}))"


def now(name: str, by: str = "", also: str = "") -> str:
    """A gauge, added up over all servers that are shown."""
    return f"sum{f' by ({by})' if by else ''}({name}{{{HERE_ONLY}{also}}})"


def quantiles(histogram: str) -> list[tuple[str, str]]:
    """By kind of request."""
    buckets = f"sum by (le, modality)(rate({histogram}_bucket{{{KIND}}}{RATE}))"
    return [(f"{{{{modality}}}} p{q}", f"histogram_quantile({q / 100}, {buckets})") for q in (50, 95, 99)]


def by_stage(q: int) -> list[tuple[str, str]]:
    buckets = f"sum by (le, stage)(rate(proteus_stage_seconds_bucket{{{KIND}}}{RATE}))"
    return [("{{stage}}", f"histogram_quantile({q / 100}, {buckets})")]


def hit_rate(cache: str) -> str:
    return f"{rate(f'proteus_{cache}_cache_hits_total')} / {rate(f'proteus_{cache}_cache_lookups_total')}"
