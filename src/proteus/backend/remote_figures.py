"""What a door tells of the encoder servers it asks, for metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from proteus.admission.figures import Figure

ENCODER_POOL_FIGURES = (
    Figure(
        name="proteus_encoder_pool_pictures",
        meaning="Pictures for the encoder servers: under way, the most that may be, and those that wait",
        label="state",
    ),
    Figure(
        name="proteus_encoder_pool_servers",
        meaning="Encoder servers that the name stands for, and those that are connected",
        label="state",
    ),
    Figure(
        name="proteus_encoder_pool_requests_total",
        meaning="Pictures that encoder servers were asked for, by how that ended",
        label="outcome",
        counts=True,
    ),
    Figure(name="proteus_encoder_pool_retries_total", meaning="Pictures that were sent a second time", counts=True),
    Figure(
        name="proteus_encoder_pool_seconds_total",
        meaning="Of pictures that were encoded: from sent to received",
        counts=True,
    ),
)


@dataclass(slots=True, kw_only=True)
class EncoderPoolFigures:
    """Counted by the pool as it goes; since the start."""

    max_at_once: int
    under_way: int = 0
    waiting: int = 0
    known: int = 0  # servers
    connected: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    retries: int = 0
    seconds: float = 0.0

    def values(self, name: str) -> Mapping[str, float]:
        """Values of one family by the value of its label, "" where it has none."""
        by_name: Mapping[str, Mapping[str, float]] = {
            "proteus_encoder_pool_pictures": {
                "under_way": self.under_way,
                "max": self.max_at_once,
                "waiting": self.waiting,
            },
            "proteus_encoder_pool_servers": {"known": self.known, "connected": self.connected},
            "proteus_encoder_pool_requests_total": self.outcomes,
            "proteus_encoder_pool_retries_total": {"": self.retries},
            "proteus_encoder_pool_seconds_total": {"": self.seconds},
        }
        return by_name[name]
