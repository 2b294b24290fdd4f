"""The JSON documents of a stream that draws: events of previews and pictures, and the report that ends it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from proteus.door.draw_plan import DrawPlan
from proteus.generation.task import DrawEnd, DrawEvent, Settings
from proteus.stages import Stopwatch

NOTHING_USED = dict.fromkeys(("images", "text_tokens", "evaluations", "branches", "latent_tokens", "token_passes"), 0)
# To a client that left before the denoiser had its request.
LEFT_EARLY = json.dumps(
    {
        "finish_reason": "cancelled",
        "usage": NOTHING_USED,
        "stages_ms": {},
        "first_preview_ms": None,
        "images": [],
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A picture with which the denoiser is done; `sent`, unless it was not wanted any more."""

    index: int
    settings: Settings
    end: DrawEnd
    sent: bool = False
    decode_ms: float = 0.0
    encode_ms: float = 0.0


def preview_event(plan: DrawPlan, index: int, event: DrawEvent) -> str:
    step = {"step": event.step, "steps": event.steps}
    return json.dumps({"kind": "preview", "index": index, **step, **_file(plan)})


def image_event(plan: DrawPlan, index: int) -> str:
    settings = plan.pictures[index]
    noise = {"seed": settings.seed, "image_index": settings.image_index}
    return json.dumps({"kind": "image", "index": index, **noise, **_file(plan), "settings": plan.recipe(settings)})


def report(plan: DrawPlan, ended: Sequence[Ended], first_preview_ms: float | None, watch: Stopwatch) -> str:
    """`ended` in the order in which they ended: the stages of the last one are those that the client waited for."""
    last = ended[-1]
    stages_ms = {
        "queue": last.end.queue_us / 1e3,
        "denoise": last.end.denoise_us / 1e3,
        "decode": last.decode_ms,
        "encode": last.encode_ms,
    }
    for stage, ms in stages_ms.items():
        watch.add(stage, ms)
    evaluations = sum(picture.end.evaluations for picture in ended)
    all_sent = all(picture.sent for picture in ended)
    return json.dumps(
        {
            "finish_reason": "done" if all_sent else "cancelled",
            "usage": {
                "images": sum(picture.sent for picture in ended),
                "text_tokens": plan.text_tokens,
                "evaluations": evaluations,
                "branches": plan.cost.branches,
                "latent_tokens": plan.cost.latent_tokens,
                "token_passes": plan.cost.latent_tokens * evaluations,
            },
            "stages_ms": watch.report_ms(),
            "first_preview_ms": first_preview_ms,
            "images": [_bill(picture) for picture in sorted(ended, key=lambda picture: picture.index)],
        }
    )


def _file(plan: DrawPlan) -> dict[str, Any]:
    wish = plan.wish
    return {"format": wish.format, "width_px": wish.width_px, "height_px": wish.height_px}


def _bill(picture: Ended) -> dict[str, Any]:
    return {
        "index": picture.index,
        "seed": picture.settings.seed,
        "image_index": picture.settings.image_index,
        "finish_reason": "done" if picture.sent else "cancelled",
        "evaluations": picture.end.evaluations,
        "branches": picture.end.branches,
        "accelerator_ms": picture.end.accelerator_us / 1e3,
        "queue_ms": picture.end.queue_us / 1e3,
        "denoise_ms": picture.end.denoise_us / 1e3,
    }
