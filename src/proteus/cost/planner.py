"""Header and tier to the exact cost of one medium: what it becomes, its plan, its bucket, its resource vector."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from proteus.cost.buckets import Bucket, bucket_of, buckets_for
from proteus.cost.fusion import FlamingoContract, PruneAfter
from proteus.cost.vector import ResourceVector
from proteus.errors import MediaTooLarge
from proteus.families.family import ASSUMED_FRAMES_PER_S, RGB_BYTES, Family, MediaPlan, PlanRefused
from proteus.limits import ImageLimits, Tier, TierName, Tiers
from proteus.media.header import AudioHeader, PictureHeader, VideoHeader
from proteus.media.sampling import sample_frames, samples_at

PROPORTIONS = 48  # tried on each side of the square
SHRINK = 0.97  # of both sides, from one try to the next
SampledVideo = tuple[int, ...]  # indices of the frames that are given to the encoder


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaCost:
    """One medium, planned. `given_px` goes into the family's own preprocessing: the upright medium, or smaller."""

    plan: MediaPlan
    bucket: Bucket
    resources: ResourceVector
    given_px: tuple[int, int] | None  # (width, height); None for audio
    downscaled: bool = False
    frames: SampledVideo = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Planner:
    """Plans for one checkpoint; without tiers every picture keeps its size. `kv_value_bytes`: of one cached scalar.

    `fusion` accounts the same encoder in front of a language model that sees as Flamingo does, `pruning` one that drops
    visual tokens after some layers as FastV does.
    """

    family: Family
    tiers: Tiers | None = None
    kv_value_bytes: int = 2
    fusion: FlamingoContract | None = None
    pruning: PruneAfter | None = None

    def picture(
        self, header: PictureHeader, num_bytes: int, *, tier: TierName = "auto", images_in_request: int = 1
    ) -> MediaCost:
        """Raises PlanRefused as the family does, MediaTooLarge where the tier refuses or nothing fits its caps."""
        size_px = header.upright_px
        caps = getattr(self.tiers, tier) if self.tiers is not None else None
        given_px, plan = self._fit(size_px, tier, caps, images_in_request)
        decoded_pixels = size_px[0] * size_px[1]
        return MediaCost(
            plan=plan,
            bucket=bucket_of(plan.encoder_input),
            resources=self._resources(
                plan, num_bytes, decoded_pixels=decoded_pixels, decode_bytes=RGB_BYTES * decoded_pixels
            ),
            given_px=given_px,
            downscaled=given_px != size_px,
        )

    def video(self, header: VideoHeader, num_bytes: int, *, frames_per_s: float, max_frames: int) -> MediaCost:
        """The frames that the policy takes; raises PlanRefused, or InvalidMedia for a clip of no frames."""
        frames = sample_frames(header, frames_per_s=frames_per_s, max_frames=max_frames)
        rate = len(frames) / header.duration_s if header.duration_s > 0 else ASSUMED_FRAMES_PER_S
        plan = self.family.plan_video(len(frames), header.width_px, header.height_px, frames_per_s=rate)
        frame_pixels = header.width_px * header.height_px
        resources = self._resources(
            plan,
            num_bytes,
            decoded_pixels=frame_pixels * len(frames),
            decode_bytes=RGB_BYTES * frame_pixels * len(frames),
            frames=len(frames),
            media_ms=round(header.duration_s * 1e3),
        )
        return MediaCost(
            plan=plan,
            bucket=bucket_of(plan.encoder_input),
            resources=resources,
            given_px=(header.width_px, header.height_px),
            frames=frames,
        )

    def audio(self, header: AudioHeader, num_bytes: int) -> MediaCost:
        """Mono at the family's own rate; raises PlanRefused."""
        plan = self.family.plan_audio(samples_at(header, self.family.sample_rate_hz))
        resources = self._resources(
            plan, num_bytes, decode_bytes=plan.decode_bytes, media_ms=round(header.duration_s * 1e3)
        )
        return MediaCost(plan=plan, bucket=bucket_of(plan.encoder_input), resources=resources, given_px=None)

    def text(self, text_tokens: int, max_tokens: int) -> ResourceVector:
        """What text and the longest answer add to the media of a request."""
        kv_bytes = self.family.language.self_kv_bytes(text_tokens + max_tokens, self.kv_value_bytes)
        return ResourceVector(requests=1, text_tokens=text_tokens, output_tokens=max_tokens, kv_bytes=kv_bytes)

    def _resources(
        self,
        plan: MediaPlan,
        num_bytes: int,
        *,
        decoded_pixels: int = 0,
        decode_bytes: int = 0,
        frames: int = 0,
        media_ms: int = 0,
    ) -> ResourceVector:
        prompt = self._in_prompt(plan)
        return ResourceVector(
            items=1,
            media_bytes=num_bytes,
            decoded_pixels=decoded_pixels,
            decode_bytes=decode_bytes,
            frames=frames,
            media_ms=media_ms,
            patches=plan.patches,
            encoder_flops=plan.encoder_flops,
            visual_tokens=prompt.visual_tokens,
            text_tokens=prompt.text_tokens,
            kv_bytes=prompt.kv_bytes,
            cross_kv_bytes=prompt.cross_kv_bytes,
        )

    def _in_prompt(self, plan: MediaPlan) -> ResourceVector:
        """Positions and memory that the medium takes of the language model."""
        language, value_bytes = self.family.language, self.kv_value_bytes
        visual_tokens, text_tokens = plan.visual_tokens, plan.wrapper_tokens
        cross_kv_bytes = language.cross_kv_bytes(plan.cross_rows, value_bytes)
        if self.fusion is not None:
            visual_tokens, text_tokens = 0, self.fusion.marker_tokens
            cross_kv_bytes = self.fusion.cross_kv_bytes(language, 1, value_bytes)
        kv_bytes = language.self_kv_bytes(visual_tokens + text_tokens, value_bytes)
        if self.pruning is not None:
            kv_bytes = self.pruning.kv_bytes(
                language, visual_tokens=visual_tokens, text_tokens=text_tokens, value_bytes=value_bytes
            )
        return ResourceVector(
            visual_tokens=visual_tokens, text_tokens=text_tokens, kv_bytes=kv_bytes, cross_kv_bytes=cross_kv_bytes
        )

    def _fit(
        self, size_px: tuple[int, int], tier: TierName, caps: Tier | None, images_in_request: int
    ) -> tuple[tuple[int, int], MediaPlan]:
        """The largest size, proportions kept, whose plan is within the tier."""
        if caps is None:
            return size_px, self.family.plan_image(*size_px, images_in_request=images_in_request)
        pixels = size_px[0] * size_px[1]
        if caps.over == "refuse" and pixels > caps.max_pixels:
            raise _over(tier, f"{size_px[0]}x{size_px[1]} px", "max_pixels", caps.max_pixels)
        plan: MediaPlan | None = None
        for given_px in _sizes(size_px, min(1.0, math.sqrt(caps.max_pixels / pixels)) if pixels else 1.0):
            try:
                plan = self.family.plan_image(*given_px, images_in_request=images_in_request)
            except PlanRefused:
                if plan is None:
                    raise
                break  # too small for the family before it was small enough for the tier
            if plan.visual_tokens <= caps.max_visual_tokens:
                return given_px, plan
            if caps.over == "refuse":
                break
        if plan is None:  # a side would have no pixel left
            raise _over(tier, f"{size_px[0]}x{size_px[1]} px", "max_pixels", caps.max_pixels)
        raise _over(tier, f"{plan.visual_tokens:,} visual tokens", "max_visual_tokens", caps.max_visual_tokens)


def picture_buckets(planner: Planner, limits: ImageLimits) -> tuple[Bucket, ...]:
    """Every bucket that a picture within the contract can fall into, in any of the planner's tiers.

    The largest plans are those of the largest pictures, at one proportion or another: all are tried between the two
    most elongated ones, and the smallest sizes with them.
    """
    tiers: Sequence[TierName] = ("low", "auto", "high") if planner.tiers is not None else ("auto",)
    plans = []
    for tier in tiers:
        caps = getattr(planner.tiers, tier) if planner.tiers is not None else None
        pixels = min(limits.max_pixels, caps.max_pixels) if caps is not None else limits.max_pixels
        for width_px, height_px in _corners(pixels, limits):
            header = PictureHeader(format="png", width_px=width_px, height_px=height_px)
            try:
                plans.append(planner.picture(header, 0, tier=tier).plan)
            except (PlanRefused, MediaTooLarge):
                continue
    return buckets_for(plans)


def _corners(pixels: int, limits: ImageLimits) -> Iterator[tuple[int, int]]:
    """Sizes of `pixels` at proportions from one most elongated to the other, and the smallest at each."""
    for step in range(-PROPORTIONS, PROPORTIONS + 1):
        ratio = limits.max_aspect_ratio ** (step / PROPORTIONS)
        for height_px in (math.sqrt(pixels / ratio), limits.min_side_px * max(1.0, 1 / ratio)):
            width_px = height_px * ratio
            shrink = min(1.0, limits.max_side_px / max(width_px, height_px))
            yield max(1, math.floor(width_px * shrink)), max(1, math.floor(height_px * shrink))


def _sizes(size_px: tuple[int, int], scale: float) -> Iterator[tuple[int, int]]:
    """`size_px` times `scale`, then ever smaller, while both sides have a pixel."""
    while min(given_px := scaled(size_px, scale)) >= 1:
        yield given_px
        scale *= SHRINK
    if scale >= 1.0:
        yield size_px  # of no pixels: the family says what is wrong with it


def scaled(size_px: tuple[int, int], scale: float) -> tuple[int, int]:
    """Both sides times `scale`, rounded down, so that a cap on pixels holds."""
    return math.floor(size_px[0] * scale), math.floor(size_px[1] * scale)


def _over(tier: TierName, what: str, key: str, limit: int) -> MediaTooLarge:
    return MediaTooLarge(
        f"the picture is {what} at detail {tier!r}",
        limit=f"[tiers.{tier}] {key} = {limit:,}",
        fix="send a smaller picture or ask for a lower detail",
    )
