"""What a request cost, where its time went and what the caches saved: the JSON document that ends a stream."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proteus.backend.fleet import LlmEnd
from proteus.cost.buckets import size_bucket
from proteus.cost.planner import MediaCost
from proteus.deployment import Deployment
from proteus.door.answers import Choice
from proteus.door.calls import VisualTokens
from proteus.door.encoding import planned
from proteus.door.pictures import Picture
from proteus.door.prepare import Prepared
from proteus.stages import Timeline, Times

# To a client that left before the language model had its request.
LEFT_EARLY = json.dumps(
    {
        "finish_reason": "cancelled",
        "usage": {"text_tokens": 0, "visual_tokens": 0, "output_tokens": 0, "cached_tokens": 0},
        "stages_ms": {},
        "ingress_ms": {},
        "ttft_ms": None,
        "inter_token_ms": None,
        "caches": {},
        "media": [],
        "pictures": [],
        "choices": [],
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CachesOn:
    """Which are asked at all."""

    processor: bool
    encoder: bool
    prefix: bool

    @classmethod
    def of(cls, deployment: Deployment) -> CachesOn:
        return cls(
            processor=deployment.processor_cache.max_bytes > 0,
            encoder=deployment.encoder_cache.max_bytes > 0,
            prefix=deployment.llm.prefix_cache.max_bytes > 0,
        )


def times_of(ended: Sequence[Choice], timeline: Timeline) -> Times:
    """Of a request that is over now. Queue and prefill of the language model are of the answer that spoke first."""
    first = _first(ended, timeline.first_index)
    timeline.add("lm_queue", first.queue_us * 1000)
    timeline.add("prefill", first.prefill_us * 1000)
    return timeline.report()


def _first(ended: Sequence[Choice], index: int | None) -> LlmEnd:
    return next(choice.end for choice in ended if choice.index == (index or 0))


def report(
    prepared: Prepared, seen: Sequence[VisualTokens], ended: Sequence[Choice], times: Times, asked: CachesOn
) -> str:
    """`seen` for each distinct picture, `ended` in the order in which the answers did.

    Cached tokens are the fewest of
    any answer: what the prefix cache held before the request began, since of several answers one can give the others
    what it has computed.
    """
    choices = sorted(ended, key=lambda choice: choice.index)
    first = _first(ended, times.first_index)
    cached_tokens = min(choice.end.cached_tokens for choice in choices)
    return json.dumps(
        {
            "finish_reason": choices[0].end.finish_reason,
            "usage": {
                "text_tokens": prepared.prompt.text_tokens,
                "visual_tokens": prepared.prompt.visual_tokens,
                "output_tokens": sum(choice.output_tokens for choice in choices),
                "cached_tokens": cached_tokens,
            },
            **_times(times),
            "caches": _caches(seen, cached_tokens, first, asked),
            "media": [_medium(picture, cost) for picture, cost in planned(prepared)],
            "pictures": [tokens.source for tokens in seen],
            "choices": [
                {
                    "index": choice.index,
                    "finish_reason": choice.end.finish_reason,
                    "output_tokens": choice.output_tokens,
                }
                for choice in choices
            ],
        }
    )


def _times(times: Times) -> Mapping[str, Any]:
    inter_token = None
    if times.mean_inter_token_ms is not None and times.longest_inter_token_ms is not None:
        inter_token = {"mean": _ms(times.mean_inter_token_ms), "max": _ms(times.longest_inter_token_ms)}
    return {
        "stages_ms": {**{stage: _ms(ms) for stage, ms in times.stages_ms.items()}, "total": _ms(times.total_ms)},
        "ingress_ms": {part: _ms(ms) for part, ms in times.ingress_ms.items()},
        "ttft_ms": None if times.ttft_ms is None else _ms(times.ttft_ms),
        "inter_token_ms": inter_token,
    }


def _caches(seen: Sequence[VisualTokens], cached_tokens: int, first: LlmEnd, asked: CachesOn) -> Mapping[str, Any]:
    """Of each cache: how often it was asked for this request, what it had, and the time that saved."""
    computed = [tokens for tokens in seen if tokens.source == "encoded"]
    hits = [tokens for tokens in seen if tokens.source == "cached"]
    pixels = [tokens for tokens in computed if tokens.preprocess_saved_ms]
    return {
        "processor": _cache(
            len(computed) * asked.processor, len(pixels), sum(tokens.preprocess_saved_ms for tokens in pixels)
        ),
        "encoder": _cache(len(seen) * asked.encoder, len(hits), sum(tokens.saved_ms for tokens in hits)),
        "prefix": {
            **_cache(int(asked.prefix), int(cached_tokens > 0), first.saved_us / 1e3 if cached_tokens else 0.0),
            "tokens": cached_tokens,
        },
    }


def _cache(lookups: int, hits: int, saved_ms: float) -> dict[str, Any]:
    return {"lookups": lookups, "hits": hits, "saved_ms": _ms(saved_ms)}


def _medium(picture: Picture, cost: MediaCost) -> Mapping[str, Any]:
    return {
        "size": size_bucket(picture.header.width_px * picture.header.height_px),
        "bucket": cost.bucket.label,
        "tier": picture.tier,
        "downscaled": cost.downscaled,
        "visual_tokens": cost.plan.visual_tokens,
    }


def _ms(ms: float) -> float:
    """To the µs."""
    return round(ms, 3)
