"""Results -> plots, as SVG that stands inside a page: it takes the page's colour of text, and its width."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from perf.replay.results import Result
from perf.replay.score import Summary, in_order, open_over_time
from perf.replay.trace import MODALITIES

INK = "#010203"  # becomes the colour of the page's text
COLOURS = {"text": "#3f88d0", "image": "#e0803a", "multi-image": "#3d9e68", "draw": "#a866c2"}
ERROR, CANCELLED = "#d64545", "#8c8c8c"
STAGE_COLOURS = (
    "#3f88d0",
    "#8cbbe8",
    "#e0803a",
    "#f0b98c",
    "#3d9e68",
    "#93cfae",
    "#8c8c8c",
    "#c9a227",
    "#a866c2",
    "#d64545",
)
SIZE_IN = (4.6, 3.1)
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.size": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.2,
    "grid.color": INK,
    "legend.frameon": False,
    "axes.axisbelow": True,
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
}


def plots(summary: Summary, results: Sequence[Result]) -> Iterator[tuple[str, str]]:
    """Title and SVG of each."""
    for name, (title, figure) in figures(summary, results).items():
        yield title, svg(figure, name, title)


def figures(summary: Summary, results: Sequence[Result]) -> Mapping[str, tuple[str, Figure]]:
    """By a short name: title and figure."""
    with mpl.rc_context(STYLE):
        made = {
            "cdf": ("Time to first token, share of requests", _cdf(results)),
            "time": ("Time to first token over the run; crosses: time to the end", _over_time(results)),
            "open": ("Open requests", _open(results)),
        }
        chat = {
            name: {stage: ms for stage, ms in stages.items() if stage != "decode"}
            for name, stages in summary.stages_ms.items()
            if name != "draw"
        }
        if chat:
            made["stages"] = ("Where the time to the first token goes, means", _stages(chat))
        if draw := summary.stages_ms.get("draw"):
            made["draw"] = ("Where the time of a drawing goes, means", _stages({"draw": draw}))
        return made


def svg(figure: Figure, name: str, title: str) -> str:
    """One <svg> element without anything from elsewhere; `name` makes its ids its own."""
    file = io.StringIO()
    with mpl.rc_context(STYLE | {"svg.hashsalt": name}):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = file.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text).replace("xlink:href", "href").replace(INK, "currentColor")
    text = re.sub(r'(\sid="|url\(#|href="#)', rf"\g<1>{name}-", text)
    size = re.compile(r'(<svg[^>]*?)\s(?:height|width)="[^"]*"')  # the page's own are used
    text = size.sub(r"\1", size.sub(r"\1", text, count=1), count=1)
    return text.replace("<svg", f'<svg role="img" aria-label="{title}"', 1)


def _figure(rows: int = 1, **options: Any) -> tuple[Figure, Any]:
    figure = Figure(figsize=SIZE_IN, layout="constrained")
    return figure, figure.subplots(rows, **options)


def _cdf(results: Sequence[Result]) -> Figure:
    figure, axis = _figure()
    seen_ms = [ms for modality in MODALITIES for ms in _firsts_ms(results, modality)]
    axis.set(xscale="log", xlabel="ms", xlim=_around(seen_ms), ylim=(0, 1.02))
    for modality in MODALITIES:
        firsts_ms = sorted(_firsts_ms(results, modality))
        if firsts_ms:
            shares = [number / len(firsts_ms) for number in range(len(firsts_ms) + 1)]
            axis.step([firsts_ms[0], *firsts_ms], shares, where="post", label=modality, color=COLOURS[modality])
    _plain(axis.xaxis)
    _legend(axis)
    return figure


def _firsts_ms(results: Sequence[Result], modality: str) -> Iterator[float]:
    for result in results:
        if result.is_ok and result.modality == modality and result.to_first_ms is not None:
            yield result.to_first_ms


def _over_time(results: Sequence[Result]) -> Figure:
    """Above: who got a first token, and who did not. Below: what arrived in each second."""
    figure, (axis, arrivals) = _figure(2, sharex=True, height_ratios=(4, 1))
    seen_ms = [one.to_first_ms if one.is_ok and one.to_first_ms else one.to_end_ms for one in results]
    axis.set(yscale="log", ylabel="ms", ylim=_around(seen_ms))
    for modality in MODALITIES:
        shown = [one for one in results if one.is_ok and one.modality == modality and one.to_first_ms]
        if shown:
            firsts_ms = [one.to_first_ms for one in shown]
            moments_s = [one.arrival_s for one in shown]
            axis.scatter(moments_s, firsts_ms, s=7, alpha=0.8, label=modality, color=COLOURS[modality], linewidths=0)
    for label, colour, chosen in (
        ("error", ERROR, [one for one in results if one.is_error]),
        ("cancelled", CANCELLED, [one for one in results if not one.is_ok and not one.is_error]),
    ):
        if chosen:
            moments_s = [one.arrival_s for one in chosen]
            axis.scatter(moments_s, [one.to_end_ms for one in chosen], s=14, marker="x", label=label, color=colour)
    _plain(axis.yaxis)
    _legend(axis)
    if results:
        seconds = int(max(one.arrival_s for one in results)) + 1
        arrivals.hist([one.arrival_s for one in results], bins=seconds, range=(0, seconds), color=CANCELLED)
    arrivals.set(xlabel="s", ylabel="arrivals/s")
    return figure


def _open(results: Sequence[Result]) -> Figure:
    figure, axis = _figure()
    for label, colour, until_first in (("open", "#3f88d0", False), ("without a first token", "#e0803a", True)):
        steps = open_over_time(results, until_first=until_first)
        axis.step(
            [moment_s for moment_s, _ in steps],
            [number for _, number in steps],
            where="post",
            label=label,
            color=colour,
            linewidth=1,
        )
    axis.set(xlabel="s", ylim=(0, None))
    axis.yaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(axis)
    return figure


def _stages(stages_ms: Mapping[str, Mapping[str, float]]) -> Figure:
    """A bar for each modality."""
    figure, axis = _figure()
    names = list(stages_ms)[::-1]
    lefts = [0.0] * len(names)
    for number, stage in enumerate(in_order(stage for stages in stages_ms.values() for stage in stages)):
        widths = [stages_ms[name].get(stage, 0.0) for name in names]
        colour = STAGE_COLOURS[number % len(STAGE_COLOURS)]
        axis.barh(names, widths, left=lefts, label=stage, color=colour, height=0.6)
        lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
    axis.set(xlabel="ms")
    axis.grid(visible=False, axis="y")
    axis.set_ylim(-0.8, max(2, len(names)) - 0.2)
    _legend(axis)
    return figure


def _around(values: Sequence[float]) -> tuple[float, float]:
    """Limits of a logarithmic axis. Matplotlib's own leave some values, such as 100.00000000000009 alone, no room."""
    drawn = [value for value in values if value > 0]
    return (min(drawn) / 1.3, max(drawn) * 1.3) if drawn else (1.0, 1_000.0)


def _plain(axis: Any) -> None:
    """1, 2, 5 … 1k, without powers."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"))
    axis.set_minor_formatter(FuncFormatter(lambda value, _: ""))


def _legend(axis: Any) -> None:
    handles, labels = axis.get_legend_handles_labels()
    if handles:
        axis.figure.legend(
            handles,
            labels,
            loc="outside lower center",
            ncols=5 if len(labels) < 6 else 4,
            handlelength=1.2,
            columnspacing=1.2,
        )
