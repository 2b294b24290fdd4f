"""A call to a request to draw that is known to the last evaluation: parsed, within the contract, tokenised, costed.

Call → DrawRequest → Wish, TextIds, Settings → DrawPlan
"""

from __future__ import annotations

import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from proteus.cost.draw import DrawCost, LatentGrid, plan_draw
from proteus.cost.vector import ResourceVector
from proteus.door.arrival import Call, in_thread
from proteus.door.draw_request import DrawRequest, Wish
from proteus.door.draw_text import PromptTokenizer, TextIds
from proteus.errors import InvalidRequest
from proteus.generation.encode import carried
from proteus.generation.guidance import branches
from proteus.generation.task import Settings
from proteus.limits import DrawLimits, LatencyClass
from proteus.manifest import DrawManifest
from proteus.stages import Stopwatch

CHOSEN_SEEDS = 2**53  # any client's numbers hold those


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedDraw:
    """The document read, its fields not yet looked at."""

    request: DrawRequest
    deadline_s: float | None  # to be started, on the monotonic clock


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DrawPlan:
    """Everything known before any model is called."""

    request: DrawRequest
    wish: Wish
    prompt: TextIds
    negative: TextIds | None  # of the other guidance branch, where there is one
    pictures: tuple[Settings, ...]
    cost: DrawCost  # of each picture
    revision: str  # of the checkpoint
    deadline_s: float | None

    @property
    def latency_class(self) -> LatencyClass:
        return "batch" if self.request.latency_class == "batch" else "media"

    @property
    def text_tokens(self) -> int:
        """Of all guidance branches."""
        return self.prompt.num_tokens + (self.negative.num_tokens if self.negative is not None else 0)

    @property
    def resources(self) -> ResourceVector:
        return self.cost.resources(images=len(self.pictures), text_tokens=self.text_tokens)

    @property
    def resources_of_one(self) -> ResourceVector:
        """What each picture gives back."""
        return replace(self.cost.resources(images=1), requests=0)

    def recipe(self, settings: Settings) -> dict[str, Any]:
        """All that makes one of the pictures again, in the words of the request document."""
        return {
            "prompt": self.request.prompt,
            "negative_prompt": self.request.negative_prompt,
            "size": self.wish.size,
            "steps": settings.steps,
            "guidance": settings.guidance,
            "sampler": settings.sampler,
            "seed": settings.seed,
            "image_index": settings.image_index,
            "revision": self.revision,
        }


class DrawPreparation:
    """Works in threads of its own, so that the door's event loop stays free."""

    def __init__(self, limits: DrawLimits, manifest: DrawManifest, tokenizer: PromptTokenizer, *, threads: int) -> None:
        self._limits = limits
        self._planner = DrawPlanner(limits, manifest, tokenizer)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="prepare_draw")

    async def parse(self, call: Call, watch: Stopwatch) -> ParsedDraw:
        """Raises InvalidRequest."""
        arrived_s = time.monotonic()
        return await in_thread(self._threads, lambda: self._parse(call, arrived_s, watch))

    async def plan(self, parsed: ParsedDraw, watch: Stopwatch) -> DrawPlan:
        """Raises InvalidRequest and PromptTooLong."""
        return await in_thread(self._threads, lambda: self._plan(parsed, watch))

    def _parse(self, call: Call, arrived_s: float, watch: Stopwatch) -> ParsedDraw:
        with watch.stage("parse"):
            call.refuse_parameters()
            request = DrawRequest.parse(call.document, self._limits)
            return ParsedDraw(request=request, deadline_s=call.deadline_s(request, arrived_s))

    def _plan(self, parsed: ParsedDraw, watch: Stopwatch) -> DrawPlan:
        with watch.stage("plan"):
            return self._planner.plan(parsed.request, parsed.deadline_s)


class DrawPlanner:
    """What a request comes to. `proteus cost` asks it as well."""

    def __init__(self, limits: DrawLimits, manifest: DrawManifest, tokenizer: PromptTokenizer) -> None:
        self._limits, self._manifest, self._tokenizer = limits, manifest, tokenizer
        self._grid = LatentGrid.from_manifest(manifest)

    def plan(self, request: DrawRequest, deadline_s: float | None = None) -> DrawPlan:
        """Raises InvalidRequest and PromptTooLong."""
        wish = Wish.of(request, self._limits)
        prompt, negative = self._texts(request)
        cost = self.cost(wish)
        plan = DrawPlan(
            request=request,
            wish=wish,
            prompt=prompt,
            negative=negative if cost.branches > 1 else None,
            pictures=self._pictures(request, wish),
            cost=cost,
            revision=self._manifest.revision,
            deadline_s=deadline_s,
        )
        carried(wish.format, plan.recipe(plan.pictures[-1]))  # refuses, before anything is drawn, what no file can hold
        return plan

    def cost(self, wish: Wish) -> DrawCost:
        """Of one of the pictures, whatever the prompt says."""
        return plan_draw(
            wish.width_px,
            wish.height_px,
            steps=wish.steps,
            branches=branches(wish.guidance, self._manifest.embedded_guidance),
            grid=self._grid,
            sampler=wish.sampler,
        )

    def _pictures(self, request: DrawRequest, wish: Wish) -> tuple[Settings, ...]:
        seed = secrets.randbelow(CHOSEN_SEEDS) if request.seed is None else request.seed
        return tuple(
            Settings(
                width_px=wish.width_px,
                height_px=wish.height_px,
                steps=wish.steps,
                guidance=wish.guidance,
                sampler=wish.sampler,
                seed=seed,
                image_index=request.first_index + index,
                preview_every=request.preview_every,
                max_previews_per_s=self._limits.max_previews_per_s,
            )
            for index in range(wish.n)
        )

    def _texts(self, request: DrawRequest) -> tuple[TextIds, TextIds]:
        """Both are looked at, also where guidance leaves the negative one unread: it may be on the next time."""
        prompt = self._tokenizer.encode(request.prompt, "prompt")
        if prompt.says_nothing:
            raise InvalidRequest(
                "prompt holds nothing that the checkpoint's tokenizer knows", fix="say what to draw in other words"
            )
        negative = self._tokenizer.encode(request.negative_prompt, "negative_prompt")
        if self._manifest.embedded_guidance and not negative.says_nothing:
            raise InvalidRequest(
                "negative_prompt has no effect",
                limit="the checkpoint takes guidance as a number and has no second branch",
                fix="leave it out",
            )
        return prompt, negative
