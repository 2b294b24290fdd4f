"""The models that clients name, and what a request to one of them comes to: planned here, by the door's own code."""

from __future__ import annotations

from proteus.cost.planner import Planner
from proteus.deployment import Deployment
from proteus.door.draw_plan import DrawPlan, DrawPlanner
from proteus.door.draw_request import DrawRequest
from proteus.door.draw_text import PromptTokenizer
from proteus.door.pictures import sources
from proteus.door.prepare import Parsed, Preparation, Prepared
from proteus.door.request import ChatRequest
from proteus.door.seats import Seat
from proteus.families.llava import LlavaFamily
from proteus.language.kv_slots import KV_VALUE_BYTES
from proteus.language.prompt import PromptRenderer
from proteus.manifest import DrawManifest, Manifest
from proteus.media.fetch import Fetcher
from proteus.stages import Timeline


class Reader:
    """Plans requests for the checkpoint that reads pictures."""

    def __init__(self, deployment: Deployment) -> None:
        self.limits = deployment
        family = LlavaFamily.from_checkpoint(deployment.checkpoint_path)
        planner = Planner(family=family, tiers=deployment.tiers, kv_value_bytes=KV_VALUE_BYTES)
        manifest = Manifest.load(deployment.repository_path)
        self._preparation = Preparation(
            deployment,
            planner,
            PromptRenderer.from_checkpoint(deployment.checkpoint_path),
            Fetcher(deployment.fetch, deployment.image.max_bytes),
            vocab_size=manifest.vocab_size,
        )

    async def plan(self, request: ChatRequest, seat: Seat, deadline_s: float | None) -> Prepared:
        """Raises ProteusError."""
        places = sources(request.messages, (), self.limits.image)
        parsed = Parsed(request=request, places=places, deadline_s=deadline_s)
        return await self._preparation.prepare(parsed, seat, Timeline())


class Artist:
    """Plans requests for the checkpoint that draws."""

    def __init__(self, deployment: Deployment) -> None:
        drawing = deployment.drawing
        self.limits = drawing.limits
        manifest = DrawManifest.load(deployment.repository_path)
        tokenizer = PromptTokenizer.from_checkpoint(drawing.checkpoint_path, manifest.text_inputs)
        self._planner = DrawPlanner(drawing.limits, manifest, tokenizer)

    def plan(self, request: DrawRequest, deadline_s: float | None) -> DrawPlan:
        """Raises ProteusError."""
        return self._planner.plan(request, deadline_s)
