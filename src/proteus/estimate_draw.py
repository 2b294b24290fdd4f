"""`proteus cost --draw`: a request to draw to what its report will count, for a deployment or a folder alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from proteus.admission.ask import Ask, refuse_what_never_fits
from proteus.contract_draw import DRAW
from proteus.cost.draw import LatentGrid, plan_draw
from proteus.cost.report import DrawEstimate
from proteus.deployment import Deployment
from proteus.door.draw_plan import DrawPlanner
from proteus.door.draw_request import DrawRequest, Wish
from proteus.door.draw_text import PromptTokenizer
from proteus.errors import InvalidRequest
from proteus.estimate import parse_picture_size
from proteus.families.checkpoint import read_table
from proteus.generation.guidance import branches
from proteus.limits import SamplerName
from proteus.manifest import DrawManifest

UNSAID = "any"  # stands for a prompt that is not given: it says nothing of what the pictures cost
STEPS, GUIDANCE = 20, 3.0  # of a checkpoint folder, which has no defaults


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedDrawing:
    """The request to estimate, as the command line says it; None takes the deployment's default."""

    size: str
    steps: int | None = None
    guidance: float | None = None
    sampler: SamplerName | None = None
    images: int = 1
    prompt: str | None = None
    negative_prompt: str = ""


def estimate_draw(wanted: WantedDrawing, *, checkpoint: Path | None, deployment: Path) -> DrawEstimate:
    """With a checkpoint folder its configs alone decide; without, the deployment's export and contract do.

    Raises InvalidRequest, PromptTooLong, MediaTooLarge, UnsupportedCheckpoint or DeploymentError.
    """
    if checkpoint is not None:
        return _of_folder(wanted, checkpoint)
    return _of_deployment(wanted, Deployment.load(deployment))


def _of_deployment(wanted: WantedDrawing, deployment: Deployment) -> DrawEstimate:
    drawing = deployment.drawing
    manifest = DrawManifest.load(deployment.repository_path)
    request = DrawRequest(
        prompt=UNSAID if wanted.prompt is None else wanted.prompt,
        negative_prompt=wanted.negative_prompt,
        size=wanted.size,
        steps=wanted.steps,
        guidance=wanted.guidance,
        sampler=wanted.sampler,
        n=wanted.images,
    )
    wish = Wish.of(request, drawing.limits)
    tokenizer = PromptTokenizer.from_checkpoint(drawing.checkpoint_path, manifest.text_inputs)
    planner = DrawPlanner(drawing.limits, manifest, tokenizer)
    estimate = DrawEstimate(
        size=wish.size,
        guidance=wish.guidance,
        sampler=wish.sampler,
        images=wish.n,
        cost=planner.cost(wish),
        text_tokens=None if wanted.prompt is None else planner.plan(request).text_tokens,
    )
    ask = Ask(vector=estimate.total, latency_class="media", tenant="", model=DRAW.name)
    refuse_what_never_fits(ask, drawing.limits.admission, table="draw.admission")
    return estimate


def _of_folder(wanted: WantedDrawing, folder: Path) -> DrawEstimate:
    if wanted.prompt is not None:
        raise InvalidRequest("text is counted by a deployment alone", fix="leave out --text, or --checkpoint")
    width_px, height_px = parse_picture_size(wanted.size)
    guidance = GUIDANCE if wanted.guidance is None else wanted.guidance
    if not guidance >= 1:
        raise InvalidRequest(f"guidance = {guidance}", limit="1 (none) or more", fix="correct the number")
    if wanted.images < 1:
        raise InvalidRequest(f"n = {wanted.images}", limit="1 or more", fix="correct the number")
    sampler: SamplerName = wanted.sampler or "euler"
    cost = plan_draw(
        width_px,
        height_px,
        steps=STEPS if wanted.steps is None else wanted.steps,
        branches=branches(guidance, _embeds_guidance(folder)),
        grid=LatentGrid.from_checkpoint(folder),
        sampler=sampler,
    )
    return DrawEstimate(
        size=wanted.size, guidance=guidance, sampler=sampler, images=wanted.images, cost=cost, text_tokens=None
    )


def _embeds_guidance(folder: Path) -> bool:
    """Whether the checkpoint takes guidance as a number, as distilled Flux does."""
    path = folder / "transformer" / "config.json"
    return path.exists() and read_table(path).flag("guidance_embeds", False)
