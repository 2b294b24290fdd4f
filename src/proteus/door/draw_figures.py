"""What the door of `draw` tells of itself, for metrics, as `proteus.admission.figures` does for `chat`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from proteus.admission.admission import Snapshot
from proteus.admission.figures import Figure

OUTPUT_STAGES = ("queue", "condition", "denoise", "decode", "encode")  # the parts of T_output
FIGURES = (
    Figure(name="proteus_draw_open_requests", meaning="Requests to draw that came and have not ended"),
    Figure(name="proteus_draw_reserved", meaning="Held by admitted requests to draw", label="resource"),
    Figure(name="proteus_draw_reserved_peak", meaning="The most ever held by requests to draw", label="resource"),
    Figure(name="proteus_draw_queue_depth", meaning="Requests to draw that wait to be admitted", label="latency_class"),
    Figure(name="proteus_draw_admitted_total", meaning="Requests to draw admitted", label="latency_class", counts=True),
    Figure(
        name="proteus_draw_refused_total",
        meaning="Requests to draw refused by admission",
        label="reason",
        counts=True,
    ),
    Figure(
        name="proteus_draw_requests_total", meaning="Requests to draw that ended, by how", label="outcome", counts=True
    ),
    Figure(name="proteus_draw_images_total", meaning="Pictures drawn and sent", label="format", counts=True),
    Figure(
        name="proteus_draw_unsent_images_total",
        meaning="Pictures that the denoiser had done and nobody waited for any more",
        counts=True,
    ),
    Figure(name="proteus_draw_unsent_rows_total", meaning="Rows that the denoiser computed for them", counts=True),
    Figure(name="proteus_draw_unsent_seconds_total", meaning="Their share of the time in its calls", counts=True),
    Figure(
        name="proteus_draw_output_seconds_total",
        meaning="Time of the pictures that were sent, in its parts",
        label="stage",
        counts=True,
    ),
    Figure(
        name="proteus_draw_door_previews_total",
        meaning="Previews at the door, by what came of them",
        label="outcome",
        counts=True,
    ),
    Figure(
        name="proteus_draw_door_preview_seconds_total",
        meaning="Time to decode and encode previews at the door",
        label="by",
        counts=True,
    ),
    Figure(name="proteus_draw_first_previews_total", meaning="Requests that were sent a preview", counts=True),
    Figure(
        name="proteus_draw_first_preview_seconds_total",
        meaning="Time from arrival to the first preview of a request",
        counts=True,
    ),
    Figure(name="proteus_draw_unobserved_total", meaning="Times that came into no histogram", counts=True),
)


@dataclass(slots=True)
class DrawCounts:
    """Since the start; of one event loop."""

    images: Counter[str] = field(default_factory=Counter)  # by format
    unsent_images: int = 0
    unsent_rows: int = 0
    unsent_s: float = 0.0
    output_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(OUTPUT_STAGES, 0.0))
    previews: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("sent", "dropped", "failed"), 0))
    preview_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("linear", "decoder"), 0.0))
    first_previews: int = 0
    first_preview_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorFigures:
    admission: Snapshot
    open_requests: int
    counts: DrawCounts
    outcomes: Mapping[str, float]  # requests that ended
    unobserved: int

    def values(self, name: str) -> Mapping[str, float]:
        """Values of one family by the value of its label, "" where it has none."""
        admission, counts = self.admission, self.counts
        by_name: Mapping[str, Mapping[str, float]] = {
            "proteus_draw_open_requests": {"": self.open_requests},
            "proteus_draw_reserved": admission.held,
            "proteus_draw_reserved_peak": admission.peak,
            "proteus_draw_queue_depth": {str(name): waiting for name, waiting in admission.queued.items()},
            "proteus_draw_admitted_total": {str(name): number for name, number in admission.admitted.items()},
            "proteus_draw_refused_total": admission.refused,
            "proteus_draw_requests_total": self.outcomes,
            "proteus_draw_images_total": counts.images,
            "proteus_draw_unsent_images_total": {"": counts.unsent_images},
            "proteus_draw_unsent_rows_total": {"": counts.unsent_rows},
            "proteus_draw_unsent_seconds_total": {"": counts.unsent_s},
            "proteus_draw_output_seconds_total": counts.output_s,
            "proteus_draw_door_previews_total": counts.previews,
            "proteus_draw_door_preview_seconds_total": counts.preview_s,
            "proteus_draw_first_previews_total": {"": counts.first_previews},
            "proteus_draw_first_preview_seconds_total": {"": counts.first_preview_s},
            "proteus_draw_unobserved_total": {"": self.unobserved},
        }
        return by_name[name]
