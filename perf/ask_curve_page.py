"""The tables of docs/ask_curve.md and its plot, from the rows of perf.curve_ask. The words are written by hand."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from perf.ask_scores import MAX_PIXELS, Cell, Detail, Row, Way
from perf.draw_scores import Share

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "ask_curve.md"
PLOT = ROOT / "docs" / "plots" / "ask_curve.png"
TITLES = {  # of the types of question that the drawn world has
    "read": "digits",
    "chart": "chart",
    "small": "small object",
    "count": "count",
    "which": "two pictures",
    "presence": "presence",
    "colour": "colour",
    "shape": "shape",
    "place": "place",
}
GIVEN = ("picture", "tier", "its cap")
COLOURS: Mapping[Detail, str] = {"low": "#d1495b", "auto": "#edae49", "high": "#1b6ca8"}
ENCODER_PX = 96


def write_pages(rows: Sequence[Row]) -> None:
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), rows), encoding="utf-8")
    plot(rows, PLOT)


def page(text: str, rows: Sequence[Row]) -> str:
    """The text with its tables written anew."""
    for name, table in tables(rows).items():
        text = _between(text, name, table)
    return text


def tables(rows: Sequence[Row]) -> dict[str, str]:
    """By the name of the mark that each stands behind."""
    whole = [row for row in rows if is_whole(row.way)]
    heads = (*GIVEN, "KB", "visual tokens")
    right = [[*_given(row), f"**{row.accuracy}**", *(str(row.of(type_).accuracy) for type_ in TITLES)] for row in whole]
    cost = [[*_given(row), f"**{ms(row.cost)}**", *(ms(row.of(type_).cost) for type_ in TITLES)] for row in whole]
    return {
        "right": markdown((*heads, "all", *TITLES.values()), right),
        "cost": markdown((*heads, "one picture", *TITLES.values()), cost),
        "parts": markdown(("pictures", "visual tokens", "core-ms", "right"), map(_parts, parts_of(rows))),
    }


def is_whole(way: Way) -> bool:
    return way.views == ("whole",)


def parts_of(rows: Sequence[Row]) -> list[Cell]:
    """The questions about something small: of those ways that show parts, and of the whole picture beside them."""
    sides_px = {row.way.side_px for row in rows if not is_whole(row.way)}
    asked = [row for row in rows if row.way.side_px in sides_px and (row.way.caps, row.way.detail) == ("demo", "auto")]
    return [row.of("small") for row in asked]


def markdown(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (heads, ["---"] * len(heads), *lines))


def summary(rows: Sequence[Row]) -> Table:
    """For a terminal."""
    table = Table(*GIVEN, "KB", "tokens", "core-ms", "right")
    for row in rows:
        if is_whole(row.way):
            table.add_row(*_given(row), ms(row.cost), str(row.accuracy))
    for cell in parts_of(rows)[1:]:
        pictures, tokens, cost, right = _parts(cell)
        table.add_row(pictures, "", "", "", tokens, cost, right)
    return table


def ms(cost: Share) -> str:
    return f"{cost.value:.1f} [{cost.low:.1f}, {cost.high:.1f}]"


def _given(row: Row) -> Iterator[str]:
    way, one, two = row.way, row.of("colour"), row.of("which")
    yield f"{way.side_px}x{way.side_px} {way.format.upper()}"
    yield way.detail
    yield _cap(way)
    yield f"{one.file_bytes / 1000:.1f}"
    yield f"{one.visual_tokens:g}, two: {two.visual_tokens:g}"


def _cap(way: Way) -> str:
    if way.caps == "demo":
        return "the demo's"
    side_px = math.isqrt(MAX_PIXELS[way.caps].get(way.detail, 0))
    return f"{side_px}x{side_px}" if side_px else "none"


def _parts(cell: Cell) -> tuple[str, str, str, str]:
    shown = {"whole": "the whole", "around": "the quarter around the thing"}
    views = cell.way.views
    told = " and ".join(shown[view] for view in views) if views[0] in shown else "four quarters"
    return told, f"{cell.visual_tokens:g}", ms(cell.cost), str(cell.accuracy)


def _between(text: str, name: str, table: str) -> str:
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    found, count = re.subn(
        f"{re.escape(begin)}.*?{re.escape(end)}", lambda _: f"{begin}\n{table}\n{end}", text, flags=re.DOTALL
    )
    if count != 1:
        raise ValueError(f"{PAGE.name} has the mark {begin.strip()} {count} times, not once")
    return found


def plot(rows: Sequence[Row], file: Path) -> None:
    """Left: right answers of each type by size. Right: what sizes cost, and what tiers buy."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot, ticker

    whole = [row for row in rows if is_whole(row.way)]
    sizes = [row for row in whole if (row.way.caps, row.way.detail) == ("demo", "auto")]
    figure = pyplot.figure(figsize=(14, 8.5), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(3, 2))
    by_size = left.subplots(3, 3, sharex=True, sharey=True)
    for axis, type_ in zip(by_size.flat, TITLES, strict=True):
        _accuracies(axis, sizes, type_)
    above, below = right.subplots(2, 1)
    _costs(above, sizes)
    for axis in (*by_size.flat, above):
        axis.set_xscale("log", base=2)
        axis.set_xticks([row.way.side_px for row in sizes if row.way.format == "png" and row.way.side_px != 48])
        axis.xaxis.set_major_formatter(ticker.FormatStrFormatter("%d"))
        axis.xaxis.set_minor_locator(ticker.NullLocator())
        axis.tick_params(axis="x", labelsize=8, rotation=45)
        axis.axvline(ENCODER_PX, color="#888888", linestyle=":", linewidth=1)
    _tiers(below, [row for row in whole if row not in sizes])
    for axis in (*by_size.flat, above, below):
        axis.grid(alpha=0.25)
    left.supxlabel("side of the picture in px (dotted: what the encoder sees)")
    left.supylabel("right answers, with 95 % intervals")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=100, metadata={"Software": None})
    pyplot.close(figure)


def _accuracies(axis: Any, sizes: Sequence[Row], type_: str) -> None:
    png = [row for row in sizes if row.way.format == "png"]
    sides_px, shares = [row.way.side_px for row in png], [row.of(type_).accuracy for row in png]
    axis.fill_between(sides_px, [s.low for s in shares], [s.high for s in shares], color="#1b6ca8", alpha=0.2)
    axis.plot(sides_px, [s.value for s in shares], color="#1b6ca8", marker="o", markersize=3)
    axis.set(title=TITLES[type_], ylim=(0, 1.03))


def _costs(axis: Any, sizes: Sequence[Row]) -> None:
    png = [row for row in sizes if row.way.format == "png"]
    lines = (
        ("one picture, PNG", png, [row.cost for row in png], "#1b6ca8", "o-"),
        ("two pictures, PNG", png, [row.of("which").cost for row in png], "#66a182", "s-"),
    )
    jpeg = [row for row in sizes if row.way.format == "jpeg"]
    points = (("one picture, JPEG", jpeg, [row.cost for row in jpeg], "#d1495b", "D"),)
    for label, shown, costs, colour, style in (*lines, *points):
        sides_px = [row.way.side_px for row in shown]
        axis.errorbar(sides_px, *_bars(costs), fmt=style, color=colour, label=label, markersize=4, capsize=2)
    axis.set(title="cost of a request", xlabel="side of the picture in px", ylabel="core-ms, lowest to highest run")
    axis.set_ylim(bottom=0)
    axis.legend(fontsize=8)


def _tiers(axis: Any, rows: Sequence[Row]) -> None:
    markers = dict(zip(sorted({row.way.side_px for row in rows}), "os^", strict=True))
    for row in rows:
        way, (costs, cost_bars), (shares, share_bars) = row.way, _bars([row.cost]), _bars([row.accuracy])
        axis.errorbar(
            costs,
            shares,
            share_bars,
            cost_bars,
            fmt=markers[way.side_px],
            color=COLOURS[way.detail],
            capsize=2,
            fillstyle="none" if way.caps == "demo" else "full",
        )
    for side_px, marker in markers.items():
        way = next(row.way for row in rows if row.way.side_px == side_px)
        axis.plot([], [], marker, color="#555555", label=f"{side_px}x{side_px} {way.format.upper()}")
    for detail, colour in COLOURS.items():
        cap = _cap(Way(caps="tight", side_px=0, detail=detail))
        told = f"at most {cap}" if cap != "none" else "as it is"
        axis.plot([], [], "-", color=colour, linewidth=4, label=f"{detail}: {told}")
    axis.plot([], [], "^", color=COLOURS["low"], fillstyle="none", label="low: the demo's cap")
    axis.set(title="what tiers buy", xlabel="core-milliseconds of a request", ylabel="right answers, all types")
    axis.set_xlim(left=0)
    axis.legend(fontsize=8, loc="lower right")


def _bars(shares: Sequence[Share]) -> tuple[list[float], list[list[float]]]:
    """Values, and how far each reaches below and above."""
    low, high = [share.value - share.low for share in shares], [share.high - share.value for share in shares]
    return [share.value for share in shares], [low, high]
