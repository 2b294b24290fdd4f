"""One question about a new picture, traced: `python -m perf.trace` draws docs/plots/trace.png of its spans. 15 s."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from PIL import Image
from rich.console import Console

from perf.collector import Spans, collecting
from proteus.client import Client
from proteus.launcher import Server, Tracing

PLOT = Path("docs/plots/trace.png")
SIDES_PX = 1600, 1200
QUESTION = "What is in the picture?"
WHOLE = {"InferRequest", "chat", "chat request"}
OF_TRITON = {"InferRequest", "chat", "compute"}
MS = 1e6


def record(deployment: Path) -> Spans:
    """The spans of the second question: the first one warms the server up."""
    with collecting() as collector, Server(deployment, tracing=Tracing(url=collector.url)) as server:
        with Client(server.ports.grpc_url) as client:
            for seed in range(2):
                collector.spans.clear()
                client.ask(QUESTION, [_picture(seed)])
                collector.until(_is_whole)
        return list(collector.spans)


def rows(spans: Spans) -> Sequence[tuple[str, int, float, float]]:
    """Name, depth, begin and length in ms of each span, as a tree: a parent before what it holds."""
    begun_ns = min(int(span["startTimeUnixNano"]) for span in spans)
    children: dict[str, Spans] = {}
    known = {span["spanId"] for span in spans}
    for span in sorted(spans, key=lambda span: int(span["startTimeUnixNano"])):
        parent = span.get("parentSpanId", "")
        children.setdefault(parent if parent in known else "", []).append(span)

    def beneath(parent: str, depth: int) -> list[tuple[str, int, float, float]]:
        found = []
        for span in children.get(parent, []):
            start_ns, end_ns = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
            found.append((span["name"], depth, (start_ns - begun_ns) / MS, (end_ns - start_ns) / MS))
            found += beneath(span["spanId"], depth + 1)
        return found

    return beneath("", 0)


def plot(spans: Spans, file: Path) -> None:
    """A waterfall: a row for each span, at its time."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    told = rows(spans)
    figure, axes = pyplot.subplots(figsize=(9, 0.36 * len(told) + 1))
    for row, (name, _, begin_ms, length_ms) in enumerate(told):
        colour = "0.6" if name in OF_TRITON else "tab:blue"
        axes.barh(row, length_ms, left=begin_ms, height=0.62, color=colour)
        axes.text(begin_ms + length_ms, row, f" {length_ms:.1f} ms", va="center", fontsize=8)
    axes.set_yticks(range(len(told)), [f"{'    ' * depth}{name}" for name, depth, *_ in told], ha="left", fontsize=9)
    axes.tick_params(axis="y", pad=150, length=0)
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set_xlabel("ms since the client sent it")
    axes.set_title("One question about a new picture: grey are Triton's own spans", fontsize=10)
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    pyplot.close(figure)


def _is_whole(spans: Sequence[Mapping[str, Any]]) -> bool:
    return {span["name"] for span in spans} >= WHOLE


def _picture(seed: int) -> Image.Image:
    noise = np.random.default_rng(seed).integers(0, 256, (SIDES_PX[1] // 16, SIDES_PX[0] // 16, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize(SIDES_PX)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deployment", type=Path, default=Path("deployments/demo.toml"))
    parser.add_argument("--json", action="store_true", help="print the spans")
    options = parser.parse_args()
    console = Console(stderr=True)
    with console.status("serving, and tracing one question"):
        spans = record(options.deployment)
    plot(spans, PLOT)
    if options.json:
        print(json.dumps(spans, indent=1))
        return
    for name, depth, begin_ms, length_ms in rows(spans):
        print(f"{begin_ms:8.1f} ms  {length_ms:8.2f} ms  {'  ' * depth}{name}")
    console.print(f"wrote {PLOT}")


if __name__ == "__main__":
    main()
