"""What the engine tells of itself, for metrics: names, meanings and values; how they get out is not known here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from proteus.admission.figures import Figure
from proteus.language.counts import Counts
from proteus.language.prefix_cache import PrefixFigures
from proteus.language.task import Figures

ENGINE_FIGURES = (
    Figure(name="proteus_llm_running", meaning="Requests in a slot", label="phase"),
    Figure(name="proteus_llm_waiting", meaning="Requests that wait for a slot", label="latency_class"),
    Figure(name="proteus_llm_kv_bytes", meaning="Keys and values: allocated, reserved, in use", label="state"),
    Figure(name="proteus_llm_ended_total", meaning="Requests that ended, by how", label="outcome", counts=True),
    Figure(name="proteus_llm_iterations_total", meaning="Iterations of the loop", counts=True),
    Figure(name="proteus_llm_prefill_tokens_total", meaning="Prompt tokens by origin", label="source", counts=True),
    Figure(name="proteus_llm_output_tokens_total", meaning="Tokens of answers", counts=True),
    Figure(
        name="proteus_llm_wasted_tokens_total",
        meaning="Tokens computed for requests that were stopped or failed, or in chunks that gave way to text",
        label="phase",
        counts=True,
    ),
    Figure(name="proteus_llm_work_seconds_total", meaning="Time of the loop by work", label="work", counts=True),
    Figure(name="proteus_prefix_cache_lookups_total", meaning="Prompts that looked for a prefix", counts=True),
    Figure(name="proteus_prefix_cache_hits_total", meaning="Prompts that found one", counts=True),
    Figure(name="proteus_prefix_cache_bytes", meaning="Of the prefix cache: held, allocated", label="state"),
    Figure(name="proteus_prefix_cache_evicted_total", meaning="Blocks given up", label="reason", counts=True),
    Figure(
        name="proteus_prefix_cache_saved_seconds",
        meaning="Prefill that was not computed, at the mean time of a token, less the copying; below 0 it costs more",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFigures:
    """At one moment; all that counts is since the start."""

    scheduler: Figures
    prefixes: PrefixFigures
    counts: Counts
    copy_s: float  # between slots and the prefix cache
    kv_allocated_bytes: int
    kv_bytes_per_token: int
    kv_used_tokens: int

    @property
    def saved_s(self) -> float:
        """Prefill that was not computed, as requests were told of it, less the copying."""
        return self.counts.saved_s - self.copy_s

    def values(self, name: str) -> Mapping[str, float]:
        """Values of one family by the value of its label, "" where it has none."""
        counts, prefixes = self.counts, self.prefixes
        by_name: Mapping[str, Mapping[str, float]] = {
            "proteus_llm_running": self._running(),
            "proteus_llm_waiting": {str(name): waiting for name, waiting in self.scheduler.waiting.items()},
            "proteus_llm_kv_bytes": {
                "allocated": self.kv_allocated_bytes,
                "reserved": self.scheduler.kv_tokens * self.kv_bytes_per_token,
                "used": self.kv_used_tokens * self.kv_bytes_per_token,
            },
            "proteus_llm_ended_total": dict(counts.outcomes),
            "proteus_llm_iterations_total": {"": counts.iterations},
            "proteus_llm_prefill_tokens_total": {"computed": counts.prefilled_tokens, "cached": counts.cached_tokens},
            "proteus_llm_output_tokens_total": {"": counts.output_tokens},
            "proteus_llm_wasted_tokens_total": {
                "prefill": counts.wasted_prefill_tokens,
                "gave_way": counts.given_up_tokens,
                "decode": counts.wasted_decode_tokens,
            },
            "proteus_llm_work_seconds_total": {
                "prefill": counts.prefill_s,
                "decode": counts.decode_s,
                "gave_way": counts.given_up_s,
                "prefix_cache": self.copy_s,
            },
            "proteus_prefix_cache_lookups_total": {"": prefixes.lookups},
            "proteus_prefix_cache_hits_total": {"": prefixes.hits},
            "proteus_prefix_cache_bytes": {"held": prefixes.held_bytes, "allocated": prefixes.capacity_bytes},
            "proteus_prefix_cache_evicted_total": {
                "room": prefixes.evicted_for_room,
                "age": prefixes.evicted_by_age,
            },
            "proteus_prefix_cache_saved_seconds": {"": self.saved_s},
        }
        return by_name[name]

    def _running(self) -> Mapping[str, float]:
        return {
            "prefill": sum(self.scheduler.prefilling.values()),
            "decode": sum(self.scheduler.decoding.values()),
        }
