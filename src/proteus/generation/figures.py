"""What the denoiser's engine tells of itself, for metrics: names, meanings and values; how they get out is not known
here. A row is one guidance branch of one picture in one call.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from proteus.admission.figures import Figure
from proteus.generation.counts import Counts
from proteus.limits import LatencyClass

DRAW_FIGURES = (
    Figure(name="proteus_draw_live", meaning="Pictures that take turns in the denoiser's calls"),
    Figure(name="proteus_draw_waiting", meaning="Pictures that wait for a place", label="latency_class"),
    Figure(name="proteus_draw_ended_total", meaning="Pictures that ended, by how", label="outcome", counts=True),
    Figure(name="proteus_draw_calls_total", meaning="Calls of the denoiser", counts=True),
    Figure(
        name="proteus_draw_rows_total",
        meaning="Rows computed: of pictures, and put in beside a lone one",
        label="kind",
        counts=True,
    ),
    Figure(name="proteus_draw_row_room_total", meaning="Rows that the calls had room for", counts=True),
    Figure(name="proteus_draw_batch_occupancy", meaning="Rows of pictures / room for rows, since the start"),
    Figure(name="proteus_draw_evaluations_total", meaning="Rows computed for pictures (NFE)", counts=True),
    Figure(
        name="proteus_draw_accelerator_seconds_total",
        meaning="Time in calls, by size of the pictures",
        label="size",
        counts=True,
    ),
    Figure(
        name="proteus_draw_wasted_rows_total",
        meaning="Rows computed for pictures that were cancelled, by whether their call ended before the cancel came",
        label="cancel",
        counts=True,
    ),
    Figure(
        name="proteus_draw_wasted_seconds_total",
        meaning="Their share of the time in calls",
        label="cancel",
        counts=True,
    ),
    Figure(name="proteus_draw_previews_total", meaning="Previews handed out", counts=True),
    Figure(name="proteus_draw_preview_seconds_total", meaning="Time of the loop for previews", counts=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawFigures:
    """At one moment; all that counts is since the start."""

    live: int
    waiting: Mapping[LatencyClass, int]
    counts: Counts

    def values(self, name: str) -> Mapping[str, float]:
        """Values of one family by the value of its label, "" where it has none."""
        counts = self.counts
        by_name: Mapping[str, Mapping[str, float]] = {
            "proteus_draw_live": {"": self.live},
            "proteus_draw_waiting": {str(name): waiting for name, waiting in self.waiting.items()},
            "proteus_draw_ended_total": counts.outcomes,
            "proteus_draw_calls_total": {"": counts.calls},
            "proteus_draw_rows_total": {"real": counts.rows, "padded": counts.padded_rows},
            "proteus_draw_row_room_total": {"": counts.row_room},
            "proteus_draw_batch_occupancy": {"": counts.rows / counts.row_room if counts.row_room else 0.0},
            "proteus_draw_evaluations_total": {"": counts.rows},
            "proteus_draw_accelerator_seconds_total": counts.seconds,
            "proteus_draw_wasted_rows_total": {moment: spent.rows for moment, spent in counts.wasted.items()},
            "proteus_draw_wasted_seconds_total": {moment: spent.seconds for moment, spent in counts.wasted.items()},
            "proteus_draw_previews_total": {"": counts.previews},
            "proteus_draw_preview_seconds_total": {"": counts.preview_s},
        }
        return by_name[name]
