"""What the caches of pictures tell of themselves, for metrics; that of prompts does so in `language.figures`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from proteus.admission.figures import Figure
from proteus.cache.shared import SharedFigures
from proteus.cache.store import StoreFigures


def _rows(cache: str, of_what: str, *, hits_by: str = "") -> tuple[Figure, ...]:
    name = f"proteus_{cache}_cache"
    return (
        Figure(name=f"{name}_lookups_total", meaning=f"Pictures whose {of_what} were looked for", counts=True),
        Figure(name=f"{name}_hits_total", meaning=f"Pictures whose {of_what} were found", label=hits_by, counts=True),
        Figure(name=f"{name}_bytes", meaning=f"Of the {cache} cache: held, and the most it may hold", label="state"),
        Figure(name=f"{name}_evicted_total", meaning="Entries given up", label="reason", counts=True),
        Figure(name=f"{name}_collisions_total", meaning="Entries of another key with the same digest", counts=True),
        Figure(name=f"{name}_saved_seconds_total", meaning="What computing the hits had taken", counts=True),
    )


PROCESSOR_CACHE_FIGURES = _rows("processor", "pixels")
ENCODER_CACHE_FIGURES = (
    *_rows("encoder", "visual tokens", hits_by="source"),
    Figure(
        name="proteus_encoder_cache_redis_total",
        meaning="Questions to the Redis that servers share, by what came of them",
        label="outcome",
        counts=True,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorCacheFigures:
    store: StoreFigures

    def values(self, name: str) -> Mapping[str, float]:
        """Values of one family by the value of its label, "" where it has none."""
        return _values("processor", self.store, {"": self.store.hits}, self.store.saved_s)[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderCacheFigures:
    store: StoreFigures
    shared: SharedFigures | None  # None: there is no Redis

    def values(self, name: str) -> Mapping[str, float]:
        """Values of one family by the value of its label, "" where it has none."""
        store, shared = self.store, self.shared
        hits, saved_s, outcomes = {"local": store.hits}, store.saved_s, {}
        if shared is not None:
            hits["redis"] = shared.outcomes["hit"]
            saved_s += shared.saved_s
            outcomes = {str(name): number for name, number in shared.outcomes.items()}
        by_name = {**_values("encoder", store, hits, saved_s), "proteus_encoder_cache_redis_total": outcomes}
        return by_name[name]


def _values(
    cache: str, store: StoreFigures, hits: Mapping[str, float], saved_s: float
) -> dict[str, Mapping[str, float]]:
    name = f"proteus_{cache}_cache"
    return {
        f"{name}_lookups_total": {"": store.lookups},
        f"{name}_hits_total": hits,
        f"{name}_bytes": {"held": store.held_bytes, "max": store.max_bytes},
        f"{name}_evicted_total": {"room": store.evicted_for_room, "age": store.evicted_by_age},
        f"{name}_collisions_total": {"": store.collisions},
        f"{name}_saved_seconds_total": {"": saved_s},
    }
