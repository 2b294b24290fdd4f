"""docs/plots/gateway_load.png and the tables of docs/gateway_load.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from perf.gateway_client import DIRECT, GATEWAY
from perf.gateway_restart import Course
from perf.gateway_turns import KINDS, Kind, Turns
from perf.records import Record
from perf.soak_page import with_table

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "gateway_load.md"
PLOT = ROOT / "docs" / "plots" / "gateway_load.png"
ADDED_COLUMNS = ("requests", "moment", "straight p50, ms", "added p50, ms", "straight p99, ms", "added p99, ms")
OWN_COLUMNS = (
    "requests",
    "gateway's stages p50, ms",
    "p99, ms",
    "processor time, ms",
    "waited for a core, ms",
    "answers equal",
)
HELD_COLUMNS = ("held", "", "told")
LOST_COLUMNS = ("what happened", "answers", "asked", "lost", "told")
COLOURS = {DIRECT: "#1b6ca8", GATEWAY: "#d1495b"}
WORDS = {
    "text_streamed": "text, streamed",
    "text_whole": "text, whole",
    "mix_streamed": "text and 10 % pictures, streamed",
    "long_streamed": "text, streamed, 8 tokens each",
    "first": "first text",
    "whole": "whole answer",
}
Found = Mapping[str, Record]


def write_page(found: Sequence[Record], turns: Turns, courses: Sequence[Course]) -> None:
    plot(turns, courses)
    by_name = {record.name: record for record in found}
    page = PAGE.read_text(encoding="utf-8")
    for columns, rows in (
        (ADDED_COLUMNS, added_rows(by_name)),
        (OWN_COLUMNS, own_rows(by_name)),
        (HELD_COLUMNS, held_rows(by_name)),
        (LOST_COLUMNS, lost_rows(by_name)),
    ):
        page = with_table(page, columns, rows)
    PAGE.write_text(page, encoding="utf-8")


def added_rows(found: Found) -> Iterator[Sequence[str]]:
    for kind in KINDS:
        for moment in ("first", "whole"):
            if (middle := found.get(f"added/{kind.name}/{moment}_p50")) is not None:
                high = found[f"added/{kind.name}/{moment}_p99"]
                yield WORDS[kind.name], WORDS[moment], *(cell for one in (middle, high) for cell in _added(one))


def _added(record: Record) -> tuple[str, str]:
    runs = ", ".join(f"{run:.2f}" for run in record.runs)
    return f"{record.baseline:.1f}", f"**{record.value:.2f}** ({runs})"


def own_rows(found: Found) -> Iterator[Sequence[str]]:
    for kind in KINDS:
        equal = found[f"equal/{kind.name}"]
        names = (f"own/{kind.name}_p50", f"own/{kind.name}_p99", f"cpu/{kind.name}", f"waited/{kind.name}")
        own = [found[name].value for name in names]
        yield WORDS[kind.name], *(f"{value:.2f}" for value in own), f"{equal.value:,.0f} of {equal.baseline:,.0f}"


def held_rows(found: Found) -> Iterator[Sequence[str]]:
    for what in ("streams", "connections"):
        held, memory, asked = (found[f"{what}/{name}"] for name in ("held", "memory", "asked"))
        yield f"{held.baseline:,.0f} {what}", f"{held.value:,.0f}", held.note
        yield "", f"{memory.value:.0f} KiB", memory.note
        yield "", f"{asked.value:.1f} ms", f"{asked.note} ({asked.baseline:.1f} ms)"


def lost_rows(found: Found) -> Iterator[Sequence[str]]:
    for name, words in (("restart", "SIGTERM, and started again"), ("kill", "SIGKILL of tritonserver")):
        for answers in ("streamed", "whole"):
            record = found[f"{name}/{answers}"]
            yield words, answers, f"{record.baseline:,.0f}", f"**{record.value:.0f}**", record.note
        retries = found[f"{name}/retries"]
        yield words, "all", "", "", f"{retries.value:.0f} times {retries.note}"


def plot(turns: Turns, courses: Sequence[Course], file: Path = PLOT) -> None:
    """Above how long whole answers took, both ways; below each answer while one of two servers was away."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=(18, 8), layout="constrained")
    grid = figure.add_gridspec(2, 2 * len(KINDS))
    for number, kind in enumerate(KINDS):
        _plot_kind(figure.add_subplot(grid[0, 2 * number : 2 * number + 2]), turns, kind)
    for number, course in enumerate(courses):
        _plot_course(figure.add_subplot(grid[1, len(KINDS) * number : len(KINDS) * (number + 1)]), course)
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def _plot_kind(axis: Any, turns: Turns, kind: Kind) -> None:
    for way in (DIRECT, GATEWAY):
        values = sorted(value for turn in turns.of(kind, way) for value in turn.values("whole"))
        shares = [(number + 1) / len(values) for number in range(len(values))]
        axis.plot(values, shares, color=COLOURS[way], label={DIRECT: "straight", GATEWAY: "through the gateway"}[way])
    axis.set(title=WORDS[kind.name], xlabel="whole answer, ms", ylabel="part of the requests", xscale="log")
    axis.grid(alpha=0.25, which="both")
    axis.legend(fontsize=8)


def _plot_course(axis: Any, course: Course) -> None:
    for stream, answers in course.answers.items():
        words, colour = ("streamed", "#1b6ca8") if stream else ("whole", "#3a7d44")
        for lost, marker, size in ((False, ".", 12), (True, "x", 60)):
            points = [(one["sent_s"], one["whole_ms"]) for one in answers if bool(one["error"]) is lost]
            label = f"{words}, {len(points):,} {'lost' if lost else 'answered'}"
            moments, took = zip(*points, strict=True) if points else ((), ())
            axis.scatter(moments, took, marker=marker, s=size, color="#d1495b" if lost else colour, label=label)
    for at_s, what in course.events:
        axis.axvline(at_s, color="black", linestyle=":")
        axis.annotate(what, (at_s, 0.97), xycoords=("data", "axes fraction"), rotation=90, va="top", fontsize=8)
    axis.set(title=f"{course.name} of one of two servers", xlabel="s", ylabel="whole answer, ms", yscale="log")
    axis.grid(alpha=0.25)
    axis.legend(fontsize=8)
