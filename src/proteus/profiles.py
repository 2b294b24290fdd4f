"""TensorRT's optimization profiles of each stage, from the deployment file and what was exported: one for each bucket.

Their order is fixed: `configs/gpu.pbtxt` names them by number. N is the batch, the first dim of every tensor.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proteus.contract import (
    CACHE_KEY,
    CHANNELS,
    CONNECTOR,
    IMAGE_FEATURES,
    PIXEL_VALUES,
    VISION_ENCODER,
)
from proteus.contract_draw import DENOISER, LATENTS, POOLED, TEXT_ENCODER, TEXT_STATES, VAE_DECODER
from proteus.deployment import Deployment, DeploymentError
from proteus.engines import ENGINE_FILE, EXPORT_AGAIN, Engine, EngineStage, plan_path, stages_on_tensorrt
from proteus.families.llava import LlavaFamily
from proteus.limits import DrawLimits
from proteus.manifest import DrawManifest, Manifest

MAX_PROFILES = 16  # of one engine: each is tuned on its own, and has memory of its own in every instance
FIXED, SPANNING = "fixed", "any"  # names of profiles that are of no one size of pictures

Shape = tuple[int, ...]
Span = tuple[Shape, Shape, Shape]  # min, opt, max


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The shapes that one bucket has, by input of the graph."""

    name: str  # `WIDTHxHEIGHT` in px of the pictures, `fixed` or `any`
    shapes: Mapping[str, Span]


def profiles_of(deployment: Deployment, stage: EngineStage) -> tuple[Profile, ...]:
    """In the order of their numbers; raises DeploymentError, also where the file asks for more than MAX_PROFILES."""
    return _PROFILES[stage](deployment)


def fitting(profiles: Sequence[Profile], shapes: Mapping[str, Shape]) -> int | None:
    """The number of the first profile that takes these shapes, by input: that of the size before the one of any."""
    for number, profile in enumerate(profiles):
        spans = {name: profile.shapes.get(name) for name in shapes}
        if all(span is not None and _within(shapes[name], span) for name, span in spans.items()):
            return number
    return None


def written(profiles: Iterable[Profile]) -> list[dict[str, Any]]:
    """As `engine.json` has them."""
    return [
        {"name": profile.name, "shapes": {name: [list(dims) for dims in span] for name, span in profile.shapes.items()}}
        for profile in profiles
    ]


def other_profiles(deployment: Deployment, models: Collection[str] | None = None) -> list[str]:
    """Installed engines, of `models` or all, that were built for other profiles than the deployment file asks for now,
    each with the fix. Of those that are missing or cannot be read, `check_installed` tells.
    """
    problems = []
    for stage in stages_on_tensorrt(deployment):
        place = plan_path(deployment.repository_path, stage)
        if place.exists() and (models is None or stage in models):
            engine = Engine.found(place.with_name(ENGINE_FILE))
            if engine is not None and engine.profiles != written(profiles_of(deployment, stage)):
                problems.append(
                    f"{place} was built for other sizes or batches than {deployment.path} has; "
                    f"build it again: {EXPORT_AGAIN}"
                )
    return problems


def sizes_of(limits: DrawLimits) -> tuple[tuple[int, int], ...]:
    """Every (width, height) in px that may be asked for; each is a bucket."""
    step = limits.side_multiple_px
    first = -(-limits.min_side_px // step) * step
    sides = range(first, limits.max_side_px + 1, step)
    return tuple((width, height) for height in sides for width in sides if width * height <= limits.max_pixels)


def _within(shape: Shape, span: Span) -> bool:
    least, _, most = span
    return len(shape) == len(least) and all(
        low <= dim <= high for low, dim, high in zip(least, shape, most, strict=True)
    )


def _vision_encoder(deployment: Deployment) -> tuple[Profile, ...]:
    side = Manifest.load(deployment.repository_path).image_size
    batch = _batches(deployment.stages.vision_encoder.max_batch)
    return (_fixed(batch, {PIXEL_VALUES.name: (CHANNELS, side, side)}),)


def _connector(deployment: Deployment) -> tuple[Profile, ...]:
    rows = Manifest.load(deployment.repository_path).visual_tokens
    width = LlavaFamily.from_checkpoint(deployment.checkpoint_path).feature_width
    batch = _batches(deployment.stages.connector.max_batch)
    return (_fixed(batch, {IMAGE_FEATURES.name: (rows, width)}),)


def _text_encoder(deployment: Deployment) -> tuple[Profile, ...]:
    manifest = DrawManifest.load(deployment.repository_path)
    shapes: dict[str, Shape] = {text.tensor: (text.tokens,) for text in manifest.text_inputs}
    shapes[CACHE_KEY.name] = tuple(dim for dim in CACHE_KEY.dims if isinstance(dim, int))
    return (_fixed(_batches(deployment.drawing.text_encoder.max_batch), shapes),)


def _denoiser(deployment: Deployment) -> tuple[Profile, ...]:
    """A row is one guidance branch. Pictures of other sizes take turns, so that a call is seldom full: kernels are
    chosen for half of `max_rows`.
    """
    manifest = DrawManifest.load(deployment.repository_path)
    most = deployment.drawing.denoiser.max_rows
    rows = (1, max(2, most // 2), most)
    shapes: dict[str, Shape] = {"timestep": (), TEXT_STATES.name: (manifest.text_tokens, manifest.text_width)}
    if manifest.pooled_width:
        shapes[POOLED.name] = (manifest.pooled_width,)
    if manifest.embedded_guidance:
        shapes["guidance"] = ()
    return tuple(_sized(deployment, manifest, rows, shapes))


def _vae_decoder(deployment: Deployment) -> tuple[Profile, ...]:
    manifest = DrawManifest.load(deployment.repository_path)
    return tuple(_sized(deployment, manifest, _batches(deployment.drawing.vae_decoder.max_batch), {}))


_PROFILES = {
    VISION_ENCODER.name: _vision_encoder,
    CONNECTOR.name: _connector,
    TEXT_ENCODER.name: _text_encoder,
    DENOISER.name: _denoiser,
    VAE_DECODER.name: _vae_decoder,
}


def _batches(most: int) -> Shape:
    """Kernels are chosen for full batches: a stage that is not busy has time to spare, a busy one has not."""
    return 1, most, most


def _fixed(batch: Shape, shapes: Mapping[str, Shape]) -> Profile:
    return Profile(name=FIXED, shapes=_spans(batch, {name: (dims, dims, dims) for name, dims in shapes.items()}))


def _sized(
    deployment: Deployment, manifest: DrawManifest, batch: Shape, shapes: Mapping[str, Shape]
) -> Iterator[Profile]:
    """A profile for each named size, or for all; behind named ones, a last one spans whatever else may be asked for."""
    limits = deployment.drawing.limits
    offered = sizes_of(limits)
    named = _named_sizes(deployment, offered)
    same = {name: (dims, dims, dims) for name, dims in shapes.items()}

    def profile(name: str, *sizes: tuple[int, int]) -> Profile:
        latents = tuple(
            (manifest.latent_channels, height // manifest.vae_factor, width // manifest.vae_factor)
            for width, height in sizes
        )
        least, best, most = latents if len(latents) == 3 else latents * 3
        return Profile(name=name, shapes=_spans(batch, {LATENTS.name: (least, best, most), **same}))

    for width, height in named or offered:
        yield profile(f"{width}x{height}", (width, height))
    if named and set(named) != set(offered):
        sides = [side for size in offered for side in size]
        yield profile(SPANNING, (min(sides),) * 2, limits.default_px, (max(sides),) * 2)


def _named_sizes(deployment: Deployment, offered: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    named = () if deployment.gpu is None else tuple(map(_size, deployment.gpu.sizes))
    for width, height in named:
        if (width, height) not in offered or named.count((width, height)) > 1:
            raise DeploymentError(
                f"{deployment.path}: gpu.sizes has {width}x{height}",
                limit="each one once, and of those that [draw] offers: min_side_px, max_side_px, max_pixels, "
                "side_multiple_px",
                fix="correct gpu.sizes",
            )
    count = len(named) + (set(named) != set(offered)) if named else len(offered)
    if count > MAX_PROFILES:
        raise DeploymentError(
            f"{deployment.path}: {count} sizes of drawn pictures are {count} optimization profiles of each engine",
            limit=f"{MAX_PROFILES} profiles",
            fix='name the sizes that are asked for most in gpu.sizes, such as sizes = ["512x512"]; the others share '
            "one more profile",
        )
    return named


def _size(text: str) -> tuple[int, int]:
    width, height = map(int, text.split("x"))
    return width, height


def _spans(batch: Shape, shapes: Mapping[str, tuple[Shape, Shape, Shape]]) -> dict[str, Span]:
    least, best, most = batch
    return {name: ((least, *low), (best, *mid), (most, *high)) for name, (low, mid, high) in shapes.items()}
