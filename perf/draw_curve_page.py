"""docs/drawing_curve.md and its plot, from the points of perf.curve_draw."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from perf.draw_scores import Point, front
from proteus.limits import SamplerName

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "drawing_curve.md"
PLOT = ROOT / "docs" / "plots" / "draw_curve.png"
REFERENCE: tuple[SamplerName, int, float] = ("euler", 50, 2.0)  # sampler, steps, guidance
HEAD = """\
# Quality against cost of drawing

Written by `make curve-draw` (`python -m perf.curve_draw`). The demo's checkpoint, {pictures} unseen prompts of 64x64 px
that leave nothing open; prompts and seeds are the same in every row. The rules of `export/world/verify.py` judge.

- **NFE**: evaluations of one picture: steps x guidance branches; Heun asks twice in each step but the last.
- **core-s**: CPU seconds of one picture with 8 in flight, text and decoding included, on one core.
- **exact**: share of pictures with background, count, and every colour and shape in its place right; **bold** where
  nothing that costs as little is exact more often.
- **gain**: in exact pictures over {reference}, prompt by prompt.
- **colour**, **shape**: shares of the things that were asked for.
- In brackets, 95 % intervals: Wilson's for shares of pictures, by drawing prompts again (bootstrap) for the others.

![Exact pictures against core seconds and evaluations](plots/draw_curve.png)

"""
COLUMNS = ("sampler", "steps", "guidance", "NFE", "core-s", "exact", "gain", "background", "count", "colour", "shape")
COLOURS = ("#1b6ca8", "#d1495b", "#66a182", "#edae49", "#6a4c93", "#555555")


def write_pages(points: Sequence[Point]) -> None:
    PAGE.write_text(page(points), encoding="utf-8")
    plot(points, PLOT)


def page(points: Sequence[Point]) -> str:
    """The text of docs/drawing_curve.md."""
    (reference,) = (point for point in points if (point.sampler, point.steps, point.guidance) == REFERENCE)
    best = front(points)
    told = f"{reference.sampler} with {reference.steps} steps and guidance {reference.guidance:g}"
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    lines += [f"| {' | '.join(_cells(point, reference, is_best=point in best))} |" for point in points]
    return HEAD.format(pictures=len(reference.scores), reference=told) + "\n".join(lines) + "\n"


def _cells(point: Point, reference: Point, *, is_best: bool) -> Iterator[str]:
    exact = str(point.of_pictures("exact"))
    yield point.sampler
    yield str(point.steps)
    yield f"{point.guidance:g}"
    yield f"{point.evaluations:.0f}"
    yield f"{point.core_s:.4f}"
    yield f"**{exact}**" if is_best else exact
    gain = point.gain_over(reference)
    yield f"{gain.value:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}]"
    yield str(point.of_pictures("background"))
    yield str(point.of_pictures("count"))
    yield str(point.of_things("colours"))
    yield str(point.of_things("shapes"))


def plot(points: Sequence[Point], file: Path) -> None:
    """Rows: samplers at the reference's guidance, guidances with its sampler. Columns: core seconds, evaluations."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot, ticker

    sampler, _, guidance = REFERENCE
    rows = (
        ("sampler", [point for point in points if point.guidance == guidance]),
        ("guidance", sorted((point for point in points if point.sampler == sampler), key=lambda point: point.guidance)),
    )
    columns = (("core_s", "core seconds of a picture"), ("evaluations", "evaluations of a picture (NFE)"))
    figure, axes = pyplot.subplots(2, 2, figsize=(11, 8), sharey=True, layout="constrained")
    for row, (key, shown) in zip(axes, rows, strict=True):
        for axis, (cost, label) in zip(row, columns, strict=True):
            _lines(axis, shown, key, cost)
            axis.set(xscale="log", xlabel=label, ylabel="exact pictures", ylim=(0, 1))
            axis.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
            axis.xaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
            axis.xaxis.set_minor_formatter(ticker.NullFormatter())
            axis.grid(alpha=0.25)
            axis.legend(title=key, fontsize=8)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=100, metadata={"Software": None})
    pyplot.close(figure)


def _lines(axis: Any, points: Sequence[Point], key: str, cost: str) -> None:
    """One line with error bars for each value of `key`."""
    values = list(dict.fromkeys(getattr(point, key) for point in points))
    for value, colour in zip(values, COLOURS[: len(values)], strict=True):
        line = sorted((point for point in points if getattr(point, key) == value), key=lambda point: point.steps)
        shares = [point.of_pictures("exact") for point in line]
        middles = [share.value for share in shares]
        bars = [[share.value - share.low for share in shares], [share.high - share.value for share in shares]]
        costs = [getattr(point, cost) for point in line]
        axis.errorbar(costs, middles, bars, label=str(value), color=colour, marker="o", markersize=3, capsize=2)
