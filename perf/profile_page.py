"""The table of docs/perf_analyzer.md and its plot, from perf/results/analyzer.json.

python -m perf.profile_page
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perf.analyzer import Measured
from perf.records import RESULTS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "perf_analyzer.md"
PLOT = ROOT / "docs" / "plots" / "analyzer.png"
BEGIN, END = "<!-- begin: written by python -m perf.profile_page -->\n", "<!-- end -->"
BETWEEN = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
COLUMNS = ("model", "asked", "at once", "requests/s", "p50 ms", "p95 ms", "p99 ms", "e2e ms", "queue ms", "compute ms")
COLOURS = ("#1b6ca8", "#d1495b", "#66a182", "#edae49", "#6a4c93", "#555555")
MODELS_ACROSS = 5


@dataclass(frozen=True, slots=True)
class Row:
    model: str
    bucket: str
    concurrency: int
    measured: Measured

    @property
    def e2e_ms(self) -> float:
        """Mean, to the last response: so many are open, and so many end in a second (Little's law)."""
        return 1e3 * self.concurrency / self.measured.per_s


def cells(row: Row) -> Iterator[str]:
    """One for each of `COLUMNS`."""
    found = row.measured
    yield row.model
    yield row.bucket
    yield str(row.concurrency)
    yield f"{found.per_s:,.1f}"
    yield from (f"{value:,.1f}" for value in (found.p50_ms, found.p95_ms, found.p99_ms, row.e2e_ms))
    yield from ("" if value is None else f"{value:,.1f}" for value in (found.queue_ms, found.compute_ms))


def read_results() -> tuple[list[Row], str]:
    """Of the last whole run, and what a reader must know to believe them; nothing before the first."""
    path = RESULTS / "analyzer.json"
    found = json.loads(path.read_text()) if path.exists() else {"rows": [], "note": ""}
    return [Row(**{**row, "measured": Measured(**row["measured"])}) for row in found["rows"]], found["note"]


def table(rows: Sequence[Row]) -> str:
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    lines += [f"| {' | '.join(cells(row))} |" for row in rows]
    return "\n".join(lines) + "\n"


def page(text: str, rows: Sequence[Row], note: str) -> str:
    """`text` with the table of `rows` between the marks."""
    return BETWEEN.sub(lambda _: f"{BEGIN}Measured: {note}.\n\n{table(rows)}{END}", text)


def write_pages() -> None:
    rows, note = read_results()
    if rows:
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), rows, note), encoding="utf-8")
        plot(rows, PLOT)


def plot(rows: Sequence[Row], file: Path) -> None:
    """For each model, above the throughput and below the 95th percentile, by what is open at once; a line a bucket."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    models = list(dict.fromkeys(row.model for row in rows))
    bands = -(-len(models) // MODELS_ACROSS)
    figure, axes = pyplot.subplots(
        2 * bands, MODELS_ACROSS, figsize=(17, 6 * bands), layout="constrained", squeeze=False
    )
    for number in range(bands * MODELS_ACROSS):
        band, column = divmod(number, MODELS_ACROSS)
        pair = axes[2 * band][column], axes[2 * band + 1][column]
        if number < len(models):
            _draw_model(pair, [row for row in rows if row.model == models[number]])
        else:
            for axis in pair:
                axis.axis("off")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=80, metadata={"Software": None})
    pyplot.close(figure)


def _draw_model(pair: tuple[Any, Any], rows: Sequence[Row]) -> None:
    from matplotlib import ticker

    throughput, latency = pair
    for bucket, colour in zip(dict.fromkeys(row.bucket for row in rows), COLOURS, strict=False):
        line = [row for row in rows if row.bucket == bucket]
        across = [row.concurrency for row in line]
        look = {"label": bucket, "color": colour, "marker": "o", "markersize": 3}
        throughput.plot(across, [row.measured.per_s for row in line], **look)
        latency.plot(across, [row.measured.p95_ms for row in line], **look)
    first = ", first response" if rows[0].measured.responses_per_s is not None else ""
    throughput.set(title=rows[0].model, ylabel="requests/s")
    latency.set(xlabel="requests at once", ylabel=f"p95 ms{first}")
    at_once = sorted({row.concurrency for row in rows})
    for axis in pair:
        axis.set(xscale="log", yscale="log")
        axis.set_xticks(at_once, labels=map(str, at_once))
        axis.xaxis.minorticks_off()
        axis.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
        axis.yaxis.set_minor_formatter(ticker.NullFormatter())
        axis.grid(alpha=0.25)
    throughput.legend(fontsize=8)


if __name__ == "__main__":
    write_pages()
