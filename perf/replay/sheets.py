"""A summary as sheets of words: what the terminal and the page show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from perf.replay.results import Result
from perf.replay.score import Group, Percentiles, Summary, in_order, kind_of
from proteus.client.printable import printable

COUNTS = ("asked", "ok", "cancelled", "refused", "failed", "ok/s", "good/s", "good")
TIMES = ("TTFT", "inter-token", "end to end")
NONE = "–"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    title: str
    note: str = ""
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    is_words: bool = False  # rather than numbers


def sheets(summary: Summary, results: Sequence[Result]) -> Iterator[Sheet]:
    """All of them, some without a row."""
    yield from _groups("By modality", {"all": summary.total, **summary.by_modality})
    yield from _groups("By size of the largest picture", summary.by_size)
    if len(summary.by_class) > 1:
        yield from _groups("By class", summary.by_class)
    if len(summary.by_tenant) > 1:
        yield from _groups("By tenant", summary.by_tenant)
    caches = [
        [name, *_cache(cache.lookups, cache.hits, cache.saved_ms, cache.tokens)]
        for name, cache in summary.caches.items()
    ]
    yield Sheet(title="Caches", columns=("", "lookups", "hits", "hit rate", "saved s", "tokens"), rows=caches)
    chat = {name: stages for name, stages in summary.stages_ms.items() if name != "draw"}
    yield _stages("Mean stage times of chat, ms", chat)
    yield _stages("Mean stage times of draw, ms", {"draw": summary.stages_ms.get("draw", {})})
    yield _outcomes(summary, results)


def _groups(title: str, groups: Mapping[str, Group]) -> Iterator[Sheet]:
    counts = [[name, *_counts(group)] for name, group in groups.items()]
    yield Sheet(title=title, columns=("", *COUNTS), rows=counts)
    times = [
        [name, *(told(one) for one in (group.ttft_ms, group.inter_token_ms, group.e2e_ms))]
        for name, group in groups.items()
    ]
    yield Sheet(title=f"{title}: p50 / p95 / p99 in ms", columns=("", *TIMES), rows=times)


def _counts(group: Group) -> Iterator[str]:
    for count in (group.requests, group.ok, group.cancelled, group.refused, group.failed):
        yield str(count)
    for rate in (group.throughput_per_s, group.goodput_per_s):
        yield short(rate)
    yield share(group.goodput_share)


def _cache(lookups: int, hits: int, saved_ms: float, tokens: int) -> tuple[str, ...]:
    rate = share(hits / lookups if lookups else None)
    return str(lookups), str(hits), rate, short(saved_ms / 1e3), str(tokens or NONE)


def _stages(title: str, stages_ms: Mapping[str, Mapping[str, float]]) -> Sheet:
    """A row for each stage; those of `chat` and `draw` have names in common and are not the same."""
    stages = in_order(stage for of in stages_ms.values() for stage in of)
    rows = [[stage, *(short(of[stage]) if stage in of else NONE for of in stages_ms.values())] for stage in stages]
    return Sheet(title=title, columns=("", *stages_ms), rows=rows)


def _outcomes(summary: Summary, results: Sequence[Result]) -> Sheet:
    examples = {result.outcome: result.error or "" for result in reversed(results)}
    rows = [[code, kind_of(code), str(number), examples[code]] for code, number in summary.outcomes.items()]
    note = f"{summary.missing} lines of the trace have no result: the run was stopped." if summary.missing else ""
    columns = ("outcome", "kind", "requests", "the first says")
    return Sheet(title="Outcomes", note=note, columns=columns, rows=rows, is_words=True)


def told(percentiles: Percentiles | None) -> str:
    if percentiles is None:
        return NONE
    return " / ".join(short(value) for value in (percentiles.p50, percentiles.p95, percentiles.p99))


def short(value: float) -> str:
    """About three digits."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def share(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.3g} %"


def show(summary: Summary, results: Sequence[Result]) -> None:
    """Tables for people."""
    console = Console()
    for sheet in sheets(summary, results):
        if sheet.rows:
            console.print(_table(sheet))
            if sheet.note:
                console.print(sheet.note, highlight=False)
    console.print(f"pictures that the server made smaller: {summary.downscaled_pictures}", highlight=False)
    console.print(lateness(summary), highlight=False)


def _table(sheet: Sheet) -> Table:
    table = Table(
        title=sheet.title, title_style="bold", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    for number, column in enumerate(sheet.columns):
        is_words = not number or sheet.is_words
        table.add_column(column, justify="left" if is_words else "right", no_wrap=not sheet.is_words)
    for row in sheet.rows:
        table.add_row(*(Text(printable(cell.replace(" / ", "/"))) for cell in row))  # three large numbers are wide
    return table


def lateness(summary: Summary) -> str:
    """How far the sender itself can be believed."""
    late = summary.lateness_ms
    if late is None:
        return "nothing was sent"
    text = f"the sender was late by {short(late.p50)} / {short(late.p99)} / {short(late.max)} ms (p50 / p99 / most)"
    return text + ("; it had too little of a core to be believed" if summary.is_late else "")
