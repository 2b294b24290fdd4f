"""Qwen2-VL: a picture keeps its shape, rounded to cells of 28 px; plain layers over one frame pair at a time.

Rule and sources in `qwen_grid`. Operations are those of attention within each frame pair, as transformers runs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from proteus.families import flops
from proteus.families.checkpoint import ConfigTable
from proteus.families.qwen_grid import (
    Grid,
    PixelRange,
    QwenVl,
    merger_flops,
    read_image_pixels,
    read_patch_rule,
    read_pixels,
    read_text,
    read_video_processor,
)

PATCH_PX = 14
VIDEO_PIXELS = PixelRange(128 * 28 * 28, 768 * 28 * 28)  # of one frame


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    depth: int
    width: int
    feed_forward: int
    width_out: int  # of the merger: the language model's


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen2Vl(QwenVl):
    """Checkpoints of `Qwen2VLForConditionalGeneration`."""

    name = "Qwen2-VL"
    model_types = ("qwen2_vl",)

    tower: Tower

    @classmethod
    def from_checkpoint(cls, folder: Path, config: ConfigTable) -> Self:
        """Read the folder; raises UnsupportedCheckpoint. Here `hidden_size` is the merger's width."""
        vision = config.table("vision_config")
        rule = read_patch_rule(vision, PATCH_PX)
        width = vision.positive("embed_dim", 1280)
        return cls(
            language=read_text(config, "qwen2_vl_text"),
            patch_rule=rule,
            image_pixels=read_image_pixels(folder, rule),
            video_pixels=read_pixels(
                read_video_processor(folder, "Qwen2VLVideoProcessor", rule, PATCH_PX), VIDEO_PIXELS
            ),
            tower=Tower(
                depth=vision.positive("depth", 32),
                width=width,
                feed_forward=int(width * vision.number("mlp_ratio", 4)),
                width_out=vision.positive("hidden_size", 3584),
            ),
        )

    def encoder_flops(self, grid: Grid) -> int:
        """Patch embedding, layers, merger."""
        tower = self.tower
        return (
            flops.linear(grid.patches, self.patch_rule.patch_values, tower.width)
            + tower.depth * flops.layer(grid.patches, grid.frame_patches, tower.width, tower.feed_forward)
            + merger_flops(grid, tower.width, tower.width_out, self.patch_rule.merge)
        )
