"""Qwen3-VL: cells of 32 px; the pixels of a clip are bounded as a whole; each frame pair gets its time as text.

Pictures as in `qwen_grid`; clips: `smart_resize` of Qwen3VLVideoProcessor. A clip's placeholder becomes, for each frame
pair, `<1.5 seconds>`, `<|vision_start|>`, placeholders, `<|vision_end|>`: those are the wrapper tokens, a digit of the
time being one token, as Qwen's tokenizer splits it. Operations leave out the resampling of learned positions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from proteus.families import flops
from proteus.families.checkpoint import ConfigTable
from proteus.families.family import ASSUMED_FRAMES_PER_S, MediaPlan
from proteus.families.qwen_grid import (
    Grid,
    PatchRule,
    PixelRange,
    QwenVl,
    ceil_to_cell,
    clip_bytes,
    floor_to_cell,
    merger_flops,
    read_image_pixels,
    read_patch_rule,
    read_pixels,
    read_text,
    read_video_processor,
    require_shape,
)

PATCH_PX = 16
VIDEO_PIXELS = PixelRange(128 * 32 * 32, 768 * 32 * 32)  # of the whole clip
TIME_TOKENS = 5  # "<", ".", a decimal, " seconds", ">"
EDGE_TOKENS = 2  # start and end of a frame pair


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    depth: int
    width: int
    feed_forward: int
    width_out: int  # of each merger: the language model's
    mergers: int  # the last layer's and those of the deepstack


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen3Vl(QwenVl):
    """Checkpoints of `Qwen3VLForConditionalGeneration`."""

    name = "Qwen3-VL"
    model_types = ("qwen3_vl",)

    tower: Tower

    @classmethod
    def from_checkpoint(cls, folder: Path, config: ConfigTable) -> Self:
        """Read the folder; raises UnsupportedCheckpoint."""
        vision = config.table("vision_config")
        rule = read_patch_rule(vision, PATCH_PX)
        return cls(
            language=read_text(config, "qwen3_vl_text"),
            patch_rule=rule,
            image_pixels=read_image_pixels(folder, rule),
            video_pixels=read_video_pixels(folder, rule),
            tower=read_tower(vision),
        )

    def plan_video(
        self, num_frames: int, width_px: int, height_px: int, *, frames_per_s: float = ASSUMED_FRAMES_PER_S
    ) -> MediaPlan:
        """Plan a clip whose frames are `frames_per_s` apart; raises PlanRefused below one frame pair, without area and
        where a side is over 200 times the other.
        """
        decode_bytes = clip_bytes(num_frames, width_px, height_px, least=self.patch_rule.patch_frames)
        fitted = fit_clip(num_frames, width_px, height_px, rule=self.patch_rule, pixels=self.video_pixels)
        grid = self.patch_rule.grid(num_frames, *fitted)
        times = pair_times_s(num_frames, frames_per_s, self.patch_rule.patch_frames)
        wrapper_tokens = sum(TIME_TOKENS + len(f"{time:.1f}") - len(".0") + EDGE_TOKENS for time in times)
        return self.plan("video", grid, decode_bytes, wrapper_tokens)

    def encoder_flops(self, grid: Grid) -> int:
        """Patch embedding, layers, the merger of the last layer and those of the deepstack."""
        tower = self.tower
        return (
            flops.linear(grid.patches, self.patch_rule.patch_values, tower.width)
            + tower.depth * flops.layer(grid.patches, grid.frame_patches, tower.width, tower.feed_forward)
            + tower.mergers * merger_flops(grid, tower.width, tower.width_out, self.patch_rule.merge)
        )


def fit_clip(num_frames: int, width_px: int, height_px: int, *, rule: PatchRule, pixels: PixelRange) -> tuple[int, int]:
    """(width, height) of every frame in multiples of a cell, so that all frames together fall into `pixels`.

    A side below a cell is first brought up to one. The check rounds an odd number of frames to whole pairs, ties to
    even, while the scale counts the frames as they are. Raises PlanRefused for an aspect ratio over 200.
    """
    cell_px = rule.cell_px
    if min(width_px, height_px) < cell_px:
        scale = max(cell_px / height_px, cell_px / width_px)
        width_px, height_px = int(width_px * scale), int(height_px * scale)
    require_shape(width_px, height_px)
    width, height = (round(side / cell_px) * cell_px for side in (width_px, height_px))
    paired = round(num_frames / rule.patch_frames) * rule.patch_frames
    if paired * height * width > pixels.max_pixels:
        shrink = math.sqrt((num_frames * height_px * width_px) / pixels.max_pixels)
        return floor_to_cell(width_px / shrink, cell_px), floor_to_cell(height_px / shrink, cell_px)
    if paired * height * width < pixels.min_pixels:
        grow = math.sqrt(pixels.min_pixels / (num_frames * height_px * width_px))
        return ceil_to_cell(width_px * grow, cell_px), ceil_to_cell(height_px * grow, cell_px)
    return width, height


def pair_times_s(num_frames: int, frames_per_s: float, patch_frames: int) -> tuple[float, ...]:
    """The time that stands before each frame pair: midway between its first and last frame."""
    last = num_frames - 1
    firsts = range(0, num_frames, patch_frames)
    return tuple((first / frames_per_s + min(first + patch_frames - 1, last) / frames_per_s) / 2 for first in firsts)


def read_video_pixels(folder: Path, rule: PatchRule) -> PixelRange:
    """The range of a clip; raises UnsupportedCheckpoint. This processor knows no `min_pixels` and `max_pixels`."""
    table = read_video_processor(folder, "Qwen3VLVideoProcessor", rule, PATCH_PX)
    for key in ("min_pixels", "max_pixels"):
        if key in table:
            raise table.wrong(key, table.get(key), "the edges of size")
    return read_pixels(table, VIDEO_PIXELS)


def read_tower(vision: ConfigTable) -> Tower:
    """The vision tower; raises UnsupportedCheckpoint."""
    depth = vision.positive("depth", 27)
    deepstack = set(vision.layer_numbers("deepstack_visual_indexes", (8, 16, 24)))
    return Tower(
        depth=depth,
        width=vision.positive("hidden_size", 1152),
        feed_forward=vision.positive("intermediate_size", 4304),
        width_out=vision.positive("out_hidden_size", 3584),
        mergers=1 + sum(number < depth for number in deepstack),
    )
