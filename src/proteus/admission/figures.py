"""What the door tells of itself, for metrics: names, meanings and values; how they get out is not known here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from proteus.admission.admission import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    name: str  # of the Prometheus family
    meaning: str
    label: str = ""  # the one label, when there are several values
    counts: bool = False  # only grows


FIGURES = (
    Figure(name="proteus_open_requests", meaning="Requests that came and have not ended"),
    Figure(name="proteus_reserved", meaning="Held by admitted requests", label="resource"),
    Figure(name="proteus_reserved_peak", meaning="The most ever held by admitted requests", label="resource"),
    Figure(name="proteus_queue_depth", meaning="Requests that wait to be admitted", label="latency_class"),
    Figure(name="proteus_admitted_total", meaning="Requests admitted", label="latency_class", counts=True),
    Figure(name="proteus_refused_total", meaning="Requests refused by admission", label="reason", counts=True),
    Figure(name="proteus_requests_total", meaning="Requests that ended, by how", label="outcome", counts=True),
    Figure(name="proteus_downscaled_total", meaning="Pictures made smaller by their tier", counts=True),
    Figure(name="proteus_decoded_pixels_total", meaning="Pixels of pictures that were decoded", counts=True),
    Figure(
        name="proteus_visual_tokens_total",
        meaning="Prompt positions of pictures, by where their rows came from",
        label="source",
        counts=True,
    ),
    Figure(name="proteus_patches_used_total", meaning="Patches that media filled", counts=True),
    Figure(name="proteus_patches_allocated_total", meaning="Patches that their buckets ran", counts=True),
    Figure(name="proteus_padding_waste", meaning="1 - patches used / patches allocated, since the start"),
    Figure(name="proteus_unobserved_total", meaning="Times that came into no histogram", counts=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    admission: Snapshot
    open_requests: int
    outcomes: Mapping[str, float]  # requests that ended
    downscaled: int  # pictures, since the start
    decoded_pixels: int
    visual_tokens: Mapping[str, float]
    patches_used: int
    patches_allocated: int
    unobserved: int

    def values(self, name: str) -> Mapping[str, float]:
        """Values of one family by the value of its label, "" where it has none."""
        admission = self.admission
        allocated = self.patches_allocated
        by_name: Mapping[str, Mapping[str, float]] = {
            "proteus_open_requests": {"": self.open_requests},
            "proteus_reserved": admission.held,
            "proteus_reserved_peak": admission.peak,
            "proteus_queue_depth": {str(name): waiting for name, waiting in admission.queued.items()},
            "proteus_admitted_total": {str(name): number for name, number in admission.admitted.items()},
            "proteus_refused_total": admission.refused,
            "proteus_requests_total": self.outcomes,
            "proteus_downscaled_total": {"": self.downscaled},
            "proteus_decoded_pixels_total": {"": self.decoded_pixels},
            "proteus_visual_tokens_total": self.visual_tokens,
            "proteus_patches_used_total": {"": self.patches_used},
            "proteus_patches_allocated_total": {"": allocated},
            "proteus_padding_waste": {"": 1 - self.patches_used / allocated if allocated else 0.0},
            "proteus_unobserved_total": {"": self.unobserved},
        }
        return by_name[name]
