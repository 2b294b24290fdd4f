"""What a request cost and where its time went: the JSON document that ends a stream."""

from __future__ import annotations

import json
from collections.abc import Sequence

from proteus.door.answers import Choice
from proteus.door.prepare import Prepared
from proteus.stages import Stopwatch

# To a client that left before the language model had its request.
LEFT_EARLY = json.dumps(
    {
        "finish_reason": "cancelled",
        "usage": {"text_tokens": 0, "visual_tokens": 0, "output_tokens": 0, "cached_tokens": 0},
        "stages_ms": {},
        "pictures": [],
        "choices": [],
    }
)


def report(prepared: Prepared, sources: Sequence[str], ended: Sequence[Choice], watch: Stopwatch) -> str:
    """`ended` in the order in which they ended: the stages of the last one are those that the client waited for.

    Cached tokens are the fewest of any answer: what the prefix cache held before the request began, since of several
    answers one can give the others what it has computed.
    """
    last = ended[-1].end
    for stage, us in (("queue", last.queue_us), ("prefill", last.prefill_us), ("decode", last.decode_us)):
        watch.add(stage, us / 1e3)
    choices = sorted(ended, key=lambda choice: choice.index)
    return json.dumps(
        {
            "finish_reason": choices[0].end.finish_reason,
            "usage": {
                "text_tokens": prepared.prompt.text_tokens,
                "visual_tokens": prepared.prompt.visual_tokens,
                "output_tokens": sum(choice.output_tokens for choice in choices),
                "cached_tokens": min(choice.end.cached_tokens for choice in choices),
            },
            "stages_ms": watch.report_ms(),
            "pictures": list(sources),
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
