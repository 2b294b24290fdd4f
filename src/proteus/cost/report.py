"""A cost estimate as tables for a person and as one document for a program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rich import box
from rich.table import Table

from proteus.cost.draw import DrawCost
from proteus.cost.planner import MediaCost
from proteus.cost.vector import ResourceVector
from proteus.limits import SamplerName

MIB, GIGA = 1 << 20, 1e9
WHOLE_FROM = 1000  # a table gives no decimals from here on


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One medium of the estimate."""

    name: str  # file, or the size that was asked for
    kind: str  # format
    size: str  # "640x480", "640x480, 32 frames", "2.0 s"
    cost: MediaCost


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A whole request."""

    family: str
    lines: Sequence[Line]
    text: ResourceVector
    text_scope: str  # what `text_tokens` holds: with or without the chat template

    @property
    def total(self) -> ResourceVector:
        """The vector that admission would reserve."""
        return sum((line.cost.resources for line in self.lines), self.text)

    @property
    def prompt_tokens(self) -> int:
        """N_in = text + special + Σ visual tokens (design.md §4)."""
        return self.total.text_tokens + self.total.visual_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawEstimate:
    """A whole request to draw."""

    size: str  # "64x64"
    guidance: float
    sampler: SamplerName
    images: int
    cost: DrawCost  # of each picture
    text_tokens: int | None  # of all guidance branches; None: no text was given

    @property
    def total(self) -> ResourceVector:
        """The vector that admission would reserve."""
        return self.cost.resources(images=self.images, text_tokens=self.text_tokens or 0)


COLUMNS = ("visual tokens", "text tokens", "patches", "encoder GFLOP", "decode MiB", "KV MiB", "cross KV MiB")


def estimate_lines(estimate: Estimate) -> str:
    """What each medium becomes, numbered as in the table."""
    lines = [f"cost with {estimate.family}"]
    for number, line in enumerate(estimate.lines, start=1):
        lines.append(f"{number:>3}  {line.name}: {line.kind}, {line.size} -> {_shape(line.cost)}")
    return "\n".join(lines)


def estimate_table(estimate: Estimate) -> Table:
    """A row for each medium, one for text and answer, and the total."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("", overflow="fold")
    for column in COLUMNS:
        table.add_column(column.replace(" ", "\n", 1), justify="right", overflow="fold")  # no digit is left out
    for number, line in enumerate(estimate.lines, start=1):
        table.add_row(str(number), *_numbers(line.cost.resources))
    answer = f"text + {estimate.text.output_tokens} out" if estimate.text.output_tokens else "text"
    table.add_row(answer, *_numbers(estimate.text))
    table.add_section()
    table.add_row("total", *_numbers(estimate.total), style="bold")
    return table


def estimate_document(estimate: Estimate) -> dict[str, object]:
    """The same for a program; every number is exact."""
    return {
        "family": estimate.family,
        "media": [_line_document(line) for line in estimate.lines],
        "text": {"scope": estimate.text_scope, **dict(estimate.text.named())},
        "prompt_tokens": estimate.prompt_tokens,
        "total": dict(estimate.total.named()),
    }


def draw_table(estimate: DrawEstimate) -> Table:
    """One row: latent tokens of a picture; evaluations, token passes and text tokens of all of them."""
    cost, total = estimate.cost, estimate.total
    pictures = f"{estimate.images:,} picture{'s' if estimate.images > 1 else ''} of {estimate.size}"
    table = Table(
        box=box.SIMPLE_HEAD, title=f"cost of drawing {pictures} with {estimate.sampler}", title_justify="left"
    )
    for column in ("latent tokens N_z", "steps x branches", "evaluations", "token passes", "text tokens"):
        table.add_column(column, justify="right", overflow="fold")
    table.add_row(
        f"{cost.latent_tokens:,}",
        f"{cost.steps:,} x {cost.branches}",
        f"{total.evaluations:,}",
        f"{total.token_passes:,}",
        "" if estimate.text_tokens is None else f"{estimate.text_tokens:,}",
    )
    return table


def draw_document(estimate: DrawEstimate) -> dict[str, object]:
    """In the words of the request document, and of `usage` in the report that ends a drawing."""
    total = estimate.total
    return {
        "size": estimate.size,
        "steps": estimate.cost.steps,
        "guidance": estimate.guidance,
        "sampler": estimate.sampler,
        "images": estimate.images,
        "text_tokens": estimate.text_tokens,
        "evaluations": total.evaluations,
        "branches": estimate.cost.branches,
        "latent_tokens": estimate.cost.latent_tokens,
        "token_passes": total.token_passes,
    }


def _line_document(line: Line) -> dict[str, object]:
    cost = line.cost
    return {
        "name": line.name,
        "format": line.kind,
        "size": line.size,
        "given_px": list(cost.given_px) if cost.given_px is not None else None,
        "downscaled": cost.downscaled,
        "frame_indices": list(cost.frames),
        "encoder_input": asdict(cost.plan.encoder_input),
        "bucket": cost.bucket.label,
        "cross_rows": cost.plan.cross_rows,
        **dict(cost.resources.named()),
    }


def _shape(cost: MediaCost) -> str:
    given = cost.plan.encoder_input
    unit = {"tiles": "px", "grid": "patches", "mel": "mel frames"}[given.kind]
    smaller = f"{cost.given_px[0]}x{cost.given_px[1]} px -> " if cost.downscaled and cost.given_px else ""
    bucket = f", bucket {cost.bucket.label}" if cost.bucket.kind == "grid" else ""
    return f"{smaller}{given.count} of {given.cols}x{given.rows} {unit}{bucket}"


def _numbers(resources: ResourceVector) -> tuple[str, ...]:
    return (
        f"{resources.visual_tokens:,}",
        f"{resources.text_tokens:,}",
        f"{resources.patches:,}",
        _amount(resources.encoder_flops / GIGA),
        _amount(resources.decode_bytes / MIB),
        _amount(resources.kv_bytes / MIB),
        _amount(resources.cross_kv_bytes / MIB),
    )


def _amount(value: float) -> str:
    return f"{value:,.2f}" if value < WHOLE_FROM else f"{value:,.0f}"
