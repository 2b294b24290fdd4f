"""Traffic to pods: what the requests of a second cost, exactly, over what one pod was seen to do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from proteus.cost.draw import LatentGrid, plan_draw
from proteus.cost.planner import Planner
from proteus.deployment import Deployment
from proteus.estimate import parse_picture_size
from proteus.estimate_size.memory import LanguageMemory, PoolMemory, PoolName, Serving, language_memory, pool_memory
from proteus.estimate_size.traffic import Measured, Requests, Traffic
from proteus.estimate_size.weights import read_draw_weights, read_weights
from proteus.families.table import load_family
from proteus.generation.guidance import branches
from proteus.media.header import PictureHeader

FLOPS_A_PARAMETER = 2  # a token: one multiply-add for each


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One kind of request; all but `per_s` of one of them."""

    name: str
    per_s: float
    pictures: int = 0
    visual_tokens: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    kv_bytes: int = 0
    encoder_flops: int = 0
    visual_bytes: int = 0  # of its visual tokens in the encoder cache
    evaluations: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """How many of one pool. `needed`: a fraction of pods, by the need that is largest."""

    pool: PoolName
    needed: float | None  # None: a figure is missing
    why: str

    @property
    def number(self) -> int | None:
        return None if self.needed is None else max(1, math.ceil(self.needed - 1e-9))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What traffic asks of all pods of each pool together."""

    loads: Sequence[Load]
    pods: Sequence[Pods]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """All of an estimate."""

    memory: Sequence[PoolMemory]
    fleet: Fleet
    utilisation: float
    cached_pictures: float
    unserved: Sequence[str]  # requests of the traffic that no checkpoint here is for


def estimate_size(
    traffic: Traffic, *, deployment: Deployment | None = None, checkpoint: Path | None = None, serving: Serving
) -> Size:
    """Of a deployment, or of a checkpoint folder that reads pictures. Raises ProteusError as their readers do."""
    draws = deployment.draw_checkpoint is not None if deployment is not None else False
    reads = checkpoint if deployment is None else deployment.checkpoint_path if deployment.reads else None
    loads, memory, flops = [], [], 0
    if reads is not None:
        family, weights = load_family(reads), read_weights(reads)
        language = weights.get("language")
        # A row of the embedding is looked up, and a prompt needs the head once: without them it is a lower bound.
        flops = FLOPS_A_PARAMETER * (language.parameters - language.tables) if language is not None else 0
        kv_value_bytes = serving.kv_value_bytes or serving.weight_bytes.get("language", 2)
        planner = Planner(
            family=family,
            tiers=deployment.tiers if deployment is not None else None,
            kv_value_bytes=kv_value_bytes,
        )
        loads = [_reading(planner, request) for request in traffic.requests if request.draw is None]
        memory.append(pool_memory("encoder", weights, serving, traffic.gpu))
        memory.append(language_memory(family.language, language, serving, traffic.gpu, mean_tokens=_mean_tokens(loads)))
    drawn = []
    if draws and deployment is not None:
        folder = deployment.drawing.checkpoint_path
        grid = LatentGrid.from_checkpoint(folder)
        drawn = [_drawing(grid, request) for request in traffic.requests if request.draw is not None]
        memory.append(pool_memory("draw", read_draw_weights(folder), serving, traffic.gpu))
    pods = [pods_of(one, loads, drawn, traffic, serving.slots, flops) for one in memory]
    return Size(
        memory=memory,
        fleet=Fleet(loads=(*loads, *drawn), pods=pods),
        utilisation=traffic.utilisation,
        cached_pictures=traffic.cached_pictures,
        unserved=[
            request.name for request in traffic.requests if (reads is None if request.draw is None else not draws)
        ],
    )


def pods_of(
    memory: PoolMemory, loads: Sequence[Load], drawn: Sequence[Load], traffic: Traffic, slots: int, flops: int
) -> Pods:
    """By the largest need of: rates over measured rates, and answers under way over slots (Little's law)."""
    measured, share = traffic.measured, traffic.utilisation
    if memory.pool == "draw":
        evaluations = sum(load.per_s * load.evaluations for load in drawn)
        return _by_rate("draw", evaluations, measured.denoise_evaluations_per_s, share, "denoiser evaluations")
    if memory.pool == "encoder":
        fresh = 1 - traffic.cached_pictures
        pictures = fresh * sum(load.per_s * load.pictures for load in loads)
        if measured.encode_pictures_per_s is None and measured.tflops is not None:
            work = fresh * sum(load.per_s * load.encoder_flops for load in loads)
            return _at_least("encoder", work, measured.tflops, share)
        return _by_rate("encoder", pictures, measured.encode_pictures_per_s, share, "pictures that no cache has")
    if not isinstance(memory, LanguageMemory):
        return Pods(pool=memory.pool, needed=None, why="no language model")
    return _language(memory, loads, measured, share, slots, flops)


def _language(
    memory: LanguageMemory, loads: Sequence[Load], measured: Measured, share: float, slots: int, flops: int
) -> Pods:
    prefill, decode = measured.prefill_tokens_per_s, measured.decode_tokens_per_s
    if prefill is None or decode is None:
        if measured.tflops is not None and flops:
            tokens = sum(load.per_s * (load.prompt_tokens + load.output_tokens) for load in loads)
            return _at_least("language", flops * tokens, measured.tflops, share)
        return Pods(pool="language", needed=None, why="[measured] prefill_tokens_per_s and decode_tokens_per_s")
    work = sum(load.per_s * (load.prompt_tokens / prefill + load.output_tokens / decode) for load in loads)
    usable = min(slots, memory.slots_that_fit if memory.slots_that_fit is not None else slots)
    if not usable:
        return Pods(pool="language", needed=None, why="not one slot fits: another GPU, or a shorter context")
    # A slot's own rate is its share of what all of them do.
    under_way = sum(
        load.per_s * (load.prompt_tokens / prefill + load.output_tokens * usable / decode) for load in loads
    )
    needs = {
        f"the engine's time: {work:.2f} s of work a second / {share:g}": work / share,
        f"slots: {under_way:.1f} answers under way / ({usable} slots x {share:g})": under_way / (usable * share),
    }
    why = max(needs, key=lambda name: needs[name])
    return Pods(pool="language", needed=needs[why], why=why)


def _by_rate(pool: PoolName, rate: float, measured: float | None, share: float, what: str) -> Pods:
    if not rate:
        return Pods(pool=pool, needed=0.0, why="no request needs it")
    if measured is None:
        return Pods(
            pool=pool, needed=None, why=f"{rate:,.2f} {what} a second; [measured] does not say what one pod does"
        )
    why = f"{rate:,.2f} {what} a second / ({measured:,.1f} x {share:g})"
    return Pods(pool=pool, needed=rate / (measured * share), why=why)


def _at_least(pool: PoolName, flops: float, tflops: float, share: float) -> Pods:
    why = f"at least: {flops / 1e12:,.2f} TFLOP a second / ({tflops:g} x {share:g}); measure it for a number to trust"
    return Pods(pool=pool, needed=flops / (tflops * 1e12 * share), why=why)


def _reading(planner: Planner, request: Requests) -> Load:
    total = planner.text(request.text_tokens, request.output_tokens)
    sizes = [parse_picture_size(size) for size in request.pictures]
    for width_px, height_px in sizes:
        header = PictureHeader(format="png", width_px=width_px, height_px=height_px)
        total += planner.picture(header, 0, images_in_request=len(sizes)).resources
    return Load(
        name=request.name,
        per_s=request.per_s,
        pictures=len(sizes),
        visual_tokens=total.visual_tokens,
        prompt_tokens=total.visual_tokens + total.text_tokens,
        output_tokens=request.output_tokens,
        kv_bytes=total.kv_bytes + total.cross_kv_bytes,
        encoder_flops=total.encoder_flops,
        visual_bytes=total.visual_tokens * planner.family.language.hidden_size * 4,
    )


def _drawing(grid: LatentGrid, request: Requests) -> Load:
    width_px, height_px = parse_picture_size(request.draw or "")
    cost = plan_draw(
        width_px,
        height_px,
        steps=request.steps,
        branches=branches(request.guidance, False),
        grid=grid,
        sampler=request.sampler,
    )
    return Load(name=request.name, per_s=request.per_s, evaluations=request.images * cost.evaluations)


def _mean_tokens(loads: Sequence[Load]) -> int:
    rate = sum(load.per_s for load in loads)
    tokens = sum(load.per_s * (load.prompt_tokens + load.output_tokens) for load in loads)
    return math.ceil(tokens / rate) if rate else 0
