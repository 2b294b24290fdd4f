"""`proteus caches`: what the three caches hold and what they saved, from the server's metrics port."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from http.client import HTTPException
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from proteus.cli.plainly import told_plainly
from proteus.client.errors import ConnectionFailed, InvalidInput

DEFAULT_METRICS_URL = "127.0.0.1:8002"
TIMEOUT_S = 10.0
WHICH = "give as --metrics-url what `proteus serve` tells as metrics"
MAX_PAGE_BYTES = 64 << 20
CACHES = {"processor": "pixels", "encoder": "visual tokens", "prefix": "keys and values of prompts"}
SAMPLE = re.compile(r"proteus_(processor|encoder|prefix)_cache_(\w+?)(?:\{\w+=\"(\w+)\"\})? (\S+)", re.ASCII)

Families = Mapping[str, Mapping[str, float]]  # name without prefix -> value of the label, "" where there is none


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheState:
    """Since the server started, but for what is held now."""

    cache: str
    keeps: str
    lookups: int
    hits: int
    hits_by_source: Mapping[str, int]  # empty where there is one source
    held_bytes: int
    max_bytes: int  # 0: it is off
    evicted: Mapping[str, int]  # by reason
    saved_s: float
    redis: Mapping[str, int]  # questions to it by outcome; empty without one

    @property
    def hit_rate(self) -> float | None:
        return self.hits / self.lookups if self.lookups else None


def caches(
    metrics_url: Annotated[str, typer.Option(help="host:port of the server's metrics port.")] = DEFAULT_METRICS_URL,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """What the processor, encoder and prefix caches were asked, had, hold, gave up, and saved."""
    with told_plainly():
        states = read_states(_page(metrics_url))
        if not states:
            raise InvalidInput(
                f"what answers at {metrics_url} tells of no cache: it serves nothing that reads pictures"
            )
    if as_json:
        typer.echo(json.dumps([asdict(state) | {"hit_rate": state.hit_rate} for state in states], indent=2))
    else:
        Console(highlight=False).print(states_table(states))


def read_states(page: str) -> list[CacheState]:
    """Every cache that a page of Prometheus' text format tells of, in the order in which a request meets them."""
    told: dict[str, dict[str, dict[str, float]]] = {}
    for line in page.splitlines():
        if (found := SAMPLE.fullmatch(line)) is not None:
            cache, family, label, value = found.groups()
            told.setdefault(cache, {}).setdefault(family, {})[label or ""] = float(value)
    return [_state(cache, told[cache]) for cache in CACHES if cache in told]


def states_table(states: list[CacheState]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("cache", no_wrap=True)
    for column in ("lookups", "hits", "rate", "held", "of", "evicted", "saved"):
        table.add_column(column, justify="right")
    for state in states:
        rate = "" if state.hit_rate is None else f"{state.hit_rate:.0%}"
        most = _size(state.max_bytes) if state.max_bytes else "off"
        evicted, saved = f"{sum(state.evicted.values()):,}", f"{round(state.saved_s, 2) + 0.0:,.2f} s"  # no "-0.00"
        counts = (f"{state.lookups:,}", f"{state.hits:,}", rate, _size(state.held_bytes), most)
        table.add_row(state.cache, *counts, evicted, saved)
    redis = {name: number for state in states for name, number in state.redis.items() if number}
    if redis:
        table.caption = "Redis: " + ", ".join(f"{number:,} {name.replace('_', ' ')}" for name, number in redis.items())
        table.caption_justify = "left"
    return table


def _state(cache: str, families: Families) -> CacheState:
    def whole(family: str) -> dict[str, int]:
        return {label: round(value) for label, value in families.get(family, {}).items()}

    hits, held = whole("hits_total"), whole("bytes")
    saved = {**families.get("saved_seconds", {}), **families.get("saved_seconds_total", {})}
    return CacheState(
        cache=cache,
        keeps=CACHES[cache],
        lookups=sum(whole("lookups_total").values()),
        hits=sum(hits.values()),
        hits_by_source={label: number for label, number in hits.items() if label},
        held_bytes=held.get("held", 0),
        max_bytes=held.get("max", held.get("allocated", 0)),
        evicted=whole("evicted_total"),
        saved_s=sum(saved.values()),
        redis=whole("redis_total"),
    )


def _page(metrics_url: str) -> str:
    address = metrics_url.removeprefix("http://").removesuffix("/metrics").rstrip("/")
    if not re.fullmatch(r"[\w.\-]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}", address):
        raise InvalidInput(
            f"{metrics_url!r} is no address: give host:port of the metrics port, such as {DEFAULT_METRICS_URL}"
        )
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=TIMEOUT_S) as response:
            page: bytes = response.read(MAX_PAGE_BYTES)
    except urllib.error.HTTPError as error:
        error.close()
        told = f"what answers at {address} is no metrics port of Triton: HTTP {error.code}"
        raise ConnectionFailed(f"{told}; {WHICH}") from error
    except (OSError, HTTPException) as error:
        raise ConnectionFailed(f"no metrics port at {address}: is the server running? {WHICH}") from error
    return page.decode("utf-8", "replace")


def _size(num_bytes: int) -> str:
    if num_bytes >= 1 << 20:
        return f"{num_bytes / (1 << 20):,.1f} MiB"
    return f"{num_bytes / (1 << 10):,.0f} KiB"
