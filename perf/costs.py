"""What a picture costs in each family: docs/costs.md and its plots, from plans alone.

    python -m perf.costs [--check]

Sizes are those of the published checkpoints (tests/families/published_*.py). Nothing is downloaded, nothing is run.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proteus.cost.buckets import bucket_of, patches_allocated, patches_used
from proteus.families.family import Family, MediaPlan, PlanRefused
from proteus.families.table import load_family
from tests.families import published_llava, published_qwen, published_tiles

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "costs.md"
PLOTS = ROOT / "docs" / "plots"
SIZES = ((336, 336), (640, 480), (1280, 720), (1920, 1080), (4032, 3024), (400, 4000))
VIDEOS = ((8, 320, 240), (16, 640, 480), (32, 640, 480))  # frames, width, height
SECONDS = (1, 5, 30)
RATIOS = {"1:1": 1.0, "4:3": 4 / 3, "1:4": 1 / 4}
MEGAPIXELS = tuple(10 ** (exponent / 24) for exponent in range(-48, 31))  # 0.01 to 18
MIB, GIGA = 1 << 20, 1e9
HEAD = """\
# What media cost

Written by `make docs-plots` (`python -m perf.costs`) from the plans of `src/proteus/families/`; a test compares. Sizes
are those of the published checkpoints. The plans are judged by transformers' own processors: `make oracle`,
[perf/results/oracle.json](../perf/results/oracle.json).

- **tokens**: positions of the prompt that the medium takes, the processor's wrapper tokens included.
- **KV MiB**: keys and values of these positions, 16-bit; for Mllama also those of the cross-attention layers. An
  engine that keeps 8 bits needs half.
- **GFLOP**: of encoder and connector, one multiply-add is two; judged by torch's FlopCounterMode.

`proteus cost --checkpoint FOLDER FILE…` tells the same of any file and any checkpoint of these families.
"""


@dataclass(frozen=True, slots=True)
class Published:
    name: str
    family: Family


def families() -> Iterator[Published]:
    """Every published checkpoint we hold the configuration of, in the order of the table."""
    for module in (published_llava, published_qwen, published_tiles):
        for name, files in module.PUBLISHED.items():
            with tempfile.TemporaryDirectory() as folder:
                write_files(Path(folder), files)
                yield Published(name, load_family(Path(folder)))


def write_files(folder: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    """A checkpoint folder without weights."""
    for file, content in files.items():
        (folder / file).write_text(json.dumps(content), encoding="utf-8")


def page(all_families: Sequence[Published]) -> str:
    """The text of docs/costs.md."""
    pictures = [one for one in all_families if "image" in one.family.modalities]
    videos = [one for one in all_families if "video" in one.family.modalities]
    sounds = [one for one in all_families if "audio" in one.family.modalities]
    return "\n".join(
        [
            HEAD,
            "## A picture: tokens · KV MiB · encoder GFLOP\n",
            *_table(pictures, [f"{width}x{height}" for width, height in SIZES], _picture_cells),
            "\n![Tokens against megapixels, a panel for each family](plots/tokens.png)\n",
            "![Encoder work against megapixels, a panel for each family](plots/encoder.png)\n",
            "## A clip, frames already sampled: tokens · KV MiB · encoder GFLOP\n",
            *_table(videos, [f"{frames} of {width}x{height}" for frames, width, height in VIDEOS], _video_cells),
            "\n## Audio: tokens · KV MiB · encoder GFLOP\n",
            *_table(sounds, [f"{seconds} s" for seconds in SECONDS], _audio_cells),
            "\nWhisper's 1500 positions are keys and values of its decoder's cross-attention, no prompt positions.\n",
            "## Padding in shape buckets\n",
            "Patch grids are padded to the next of a ladder of lengths (`src/proteus/cost/buckets.py`); tiles and",
            "audio windows have one shape and are never padded. Waste is 1 - used / allocated.\n",
            *_table(
                [one for one in pictures if _is_grid(one.family)],
                [f"{width}x{height}" for width, height in SIZES],
                _waste_cells,
            ),
            "",
        ]
    )


def _table(rows: Sequence[Published], columns: Sequence[str], cells: Any) -> Iterator[str]:
    yield "| checkpoint | " + " | ".join(columns) + " |"
    yield "|---|" + "---|" * len(columns)
    for one in rows:
        yield f"| {one.name} | " + " | ".join(cells(one.family)) + " |"


def _picture_cells(family: Family) -> Iterator[str]:
    for width_px, height_px in SIZES:
        yield _cell(lambda size=(width_px, height_px): family.plan_image(*size))


def _video_cells(family: Family) -> Iterator[str]:
    for clip in VIDEOS:
        yield _cell(lambda clip=clip: family.plan_video(*clip))


def _audio_cells(family: Family) -> Iterator[str]:
    for seconds in SECONDS:
        yield _cell(lambda seconds=seconds: family.plan_audio(seconds * family.sample_rate_hz))


def _waste_cells(family: Family) -> Iterator[str]:
    for size in SIZES:
        plan = family.plan_image(*size)
        waste = 1 - patches_used(plan) / patches_allocated(plan)
        yield f"{bucket_of(plan.encoder_input).label}, {waste:.1%}"


def _cell(make: Any) -> str:
    try:
        plan: MediaPlan = make()
    except PlanRefused:
        return "refused"
    kv_mib = (plan.self_kv_bytes + plan.cross_kv_bytes) / MIB
    return f"{plan.prompt_tokens:,} · {kv_mib:,.1f} · {plan.encoder_flops / GIGA:,.0f}"


def _is_grid(family: Family) -> bool:
    return family.plan_image(336, 336).encoder_input.kind == "grid"


def plot(all_families: Sequence[Published], file: Path, label: str, value: Any) -> None:
    """One small panel for each checkpoint that reads pictures; both axes are logarithmic and shared."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    shown = [one for one in all_families if "image" in one.family.modalities]
    rows = math.ceil(len(shown) / 4)
    figure, axes = pyplot.subplots(rows, 4, figsize=(13, 2.5 * rows), sharex=True, sharey=True, layout="constrained")
    for axis, one in zip(axes.flat, shown, strict=False):
        for (ratio, sides), colour in zip(RATIOS.items(), ("#1b6ca8", "#d1495b", "#66a182"), strict=True):
            axis.plot(*_curve(one.family, sides, value), label=ratio, color=colour, linewidth=1.4)
        axis.set(xscale="log", yscale="log")
        axis.set_title(one.name, fontsize=9)
        axis.grid(alpha=0.25)
    for axis in axes.flat[len(shown) :]:
        axis.axis("off")
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower right", ncols=3, title="width : height")
    figure.supxlabel("megapixels of the picture")
    figure.supylabel(label)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=100, metadata={"Software": None})
    pyplot.close(figure)


def _curve(family: Family, sides: float, value: Any) -> tuple[list[float], list[float]]:
    xs, ys = [], []
    for megapixels in MEGAPIXELS:
        width_px = max(1, round(math.sqrt(megapixels * 1e6 * sides)))
        height_px = max(1, round(megapixels * 1e6 / width_px))
        try:
            plan = family.plan_image(width_px, height_px)
        except PlanRefused:
            continue
        xs.append(width_px * height_px / 1e6)
        ys.append(value(plan))
    return xs, ys


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare docs/costs.md instead of writing")
    check = parser.parse_args().check
    everyone = list(families())
    text = page(everyone)
    if check:
        return int(PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")
    plot(everyone, PLOTS / "tokens.png", "prompt tokens", lambda plan: plan.prompt_tokens)
    plot(everyone, PLOTS / "encoder.png", "encoder GFLOP", lambda plan: plan.encoder_flops / GIGA)
    print(f"wrote {PAGE.relative_to(ROOT)} and {PLOTS.relative_to(ROOT)}/")
    return 0


if __name__ == "__main__":
    sys.exit(main())
