"""The report as one HTML file: it fetches nothing, follows the reader's light or dark, and fits a phone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from perf.replay.plots import plots
from perf.replay.results import Result
from perf.replay.score import Summary
from perf.replay.sheets import Sheet, lateness, share, sheets, short, told

STYLE = """
:root { color-scheme: light dark; }
:root { --ink: #1c1e21; --paper: #ffffff; --line: #d9dce0; --soft: #f4f5f7; --quiet: #646a73; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e6ea; --paper: #16181b; --line: #383c42; --soft: #202327; --quiet: #9aa1ab; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1rem; background: var(--paper); color: var(--ink);
  font: 16px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.4rem; margin: 0.5rem 0; }
h2 { font-size: 1.05rem; margin: 1.8rem 0 0.4rem; }
p { margin: 0.3rem 0; color: var(--quiet); }
p.warning { color: #d64545; font-weight: 600; }
.figures, .plots { display: grid; gap: 0.8rem; margin: 1rem 0; }
.figures { grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); }
.plots { grid-template-columns: repeat(auto-fit, minmax(min(100%, 27rem), 1fr)); }
.figures div { background: var(--soft); border-radius: 0.5rem; padding: 0.6rem 0.8rem; }
.figures b { display: block; font-size: 1.15rem; font-variant-numeric: tabular-nums; }
.figures span { color: var(--quiet); font-size: 0.85rem; }
figure { margin: 0; }
figcaption { font-weight: 600; font-size: 0.95rem; }
svg { width: 100%; height: auto; display: block; }
svg * { stroke-linejoin: round; stroke-linecap: butt; }
.sheets { display: flex; flex-wrap: wrap; column-gap: 3rem; }
section { max-width: 100%; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.85rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.3rem 0.7rem 0.3rem 0; text-align: right; white-space: nowrap; }
tr { border-bottom: 1px solid var(--line); }
th:first-child, td:first-child, table.words th, table.words td { text-align: left; }
table.words td:last-child { white-space: normal; min-width: 16rem; overflow-wrap: anywhere; }
"""
DEFINITIONS = (
    "TTFT: from the planned arrival to the first token at the client; chat only. End to end: from the planned arrival "
    "to the end. Inter-token: all gaps of all answers; the tokens of one message share its gap evenly. Percentiles are "
    "by nearest rank, over requests that ended ok. Good: ended ok within the objective of its class; its share is of "
    "all but the cancelled. Rates are over the time from the begin of the run to the end of its last answer."
)


def page(summary: Summary, results: Sequence[Result], conditions: Mapping[str, object]) -> str:
    """The whole file."""
    title = escape(f"Replay of {summary.profile}")
    return "\n".join(
        (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>",
            *_head(summary, conditions),
            *_figures(summary),
            '<div class="plots">',
            *(_plot(name, drawn) for name, drawn in plots(summary, results)),
            "</div>",
            '<div class="sheets">',
            *(_table(sheet) for sheet in sheets(summary, results) if sheet.rows),
            "</div>",
            f"<h2>What is measured</h2>\n<p>{escape(DEFINITIONS)}</p>\n</body>\n</html>\n",
        )
    )


def _head(summary: Summary, conditions: Mapping[str, object]) -> Iterator[str]:
    told_of = " · ".join(f"{name} {value}" for name, value in conditions.items())
    yield f"<p>{escape(told_of)}</p>"
    warning = ' class="warning"' if summary.is_late else ""
    yield f"<p{warning}>{escape(lateness(summary))}</p>"


def _figures(summary: Summary) -> Iterator[str]:
    total = summary.total
    yield '<div class="figures">'
    for what, value in (
        ("requests", f"{total.requests}"),
        ("ok / cancelled", f"{total.ok} / {total.cancelled}"),
        ("refused / failed", f"{total.refused} / {total.failed}"),
        ("within the objective", share(total.goodput_share)),
        ("good requests/s", short(total.goodput_per_s)),
        ("TTFT p50 / p95 / p99, ms", told(total.ttft_ms)),
        ("inter-token p50 / p95 / p99, ms", told(total.inter_token_ms)),
        ("end to end p50 / p95 / p99, ms", told(total.e2e_ms)),
        ("output tokens/s", short(total.output_tokens_per_s)),
        ("most open at once", str(summary.max_open)),
        ("pictures made smaller", str(summary.downscaled_pictures)),
    ):
        yield f"<div><b>{escape(value)}</b><span>{escape(what)}</span></div>"
    yield "</div>"


def _plot(title: str, drawn: str) -> str:
    return f"<figure><figcaption>{escape(title)}</figcaption>\n{drawn}\n</figure>"


def _table(sheet: Sheet) -> str:
    words = ' class="words"' if sheet.is_words else ""
    head = "".join(f"<th>{escape(column)}</th>" for column in sheet.columns)
    body = "\n".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in sheet.rows)
    note = f"<p>{escape(sheet.note)}</p>" if sheet.note else ""
    table = f"<table{words}>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"
    return f'<section><h2>{escape(sheet.title)}</h2>\n{note}<div class="wide">{table}</div></section>'
