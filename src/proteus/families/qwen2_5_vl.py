"""Qwen2.5-VL: counts as Qwen2-VL; in most layers of the tower a patch sees only its window of 112 px.

Rule and sources in `qwen_grid`; windows: Qwen2.5-VL, arXiv 2502.13923 §2.1.1. Windows at the right and lower edge are
smaller, never padded, so operations are the sum over the windows as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from proteus.families import flops
from proteus.families.checkpoint import ConfigTable
from proteus.families.qwen2_vl import PATCH_PX, VIDEO_PIXELS
from proteus.families.qwen_grid import (
    Grid,
    PatchRule,
    QwenVl,
    merger_flops,
    read_image_pixels,
    read_patch_rule,
    read_pixels,
    read_text,
    read_video_processor,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    depth: int
    full_layers: int  # that attend to the whole frame pair
    window_patches: int  # side of a window of the other layers
    width: int
    feed_forward: int  # gated
    width_out: int  # of the merger: the language model's


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen25Vl(QwenVl):
    """Checkpoints of `Qwen2_5_VLForConditionalGeneration`."""

    name = "Qwen2.5-VL"
    model_types = ("qwen2_5_vl",)

    tower: Tower

    @classmethod
    def from_checkpoint(cls, folder: Path, config: ConfigTable) -> Self:
        """Read the folder; raises UnsupportedCheckpoint."""
        vision = config.table("vision_config")
        rule = read_patch_rule(vision, PATCH_PX)
        return cls(
            language=read_text(config, "qwen2_5_vl_text"),
            patch_rule=rule,
            image_pixels=read_image_pixels(folder, rule),
            video_pixels=read_pixels(
                read_video_processor(folder, "Qwen2VLVideoProcessor", rule, PATCH_PX), VIDEO_PIXELS
            ),
            tower=read_tower(vision, rule),
        )

    def encoder_flops(self, grid: Grid) -> int:
        """Patch embedding, layers with full and windowed attention, merger."""
        tower = self.tower
        without_attention = flops.layer(grid.patches, 0, tower.width, tower.feed_forward, gated=True)
        full = flops.attention(grid.patches, grid.frame_patches, tower.width)
        pairs = grid.frames * squares(grid.rows, tower.window_patches) * squares(grid.cols, tower.window_patches)
        windowed = flops.attention(1, pairs, tower.width)
        return (
            flops.linear(grid.patches, self.patch_rule.patch_values, tower.width)
            + tower.depth * without_attention
            + tower.full_layers * full
            + (tower.depth - tower.full_layers) * windowed
            + merger_flops(grid, tower.width, tower.width_out, self.patch_rule.merge)
        )


def squares(length: int, window: int) -> int:
    """Sum of the squares of the pieces when `length` is cut into windows: pairs within one along this side."""
    return length // window * window**2 + (length % window) ** 2


def read_tower(vision: ConfigTable, rule: PatchRule) -> Tower:
    """The vision tower; raises UnsupportedCheckpoint."""
    depth = vision.positive("depth", 32)
    window_px = vision.positive("window_size", 112)
    window_patches = window_px // rule.merge // rule.patch_px * rule.merge
    if window_patches == 0:
        raise vision.wrong("window_size", window_px, f"{rule.cell_px} px at least")
    full = set(vision.layer_numbers("fullatt_block_indexes", (7, 15, 23, 31)))
    return Tower(
        depth=depth,
        full_layers=sum(number < depth for number in full),
        window_patches=window_patches,
        width=vision.positive("hidden_size", 3584),
        feed_forward=vision.positive("intermediate_size", 3420),
        width_out=vision.positive("out_hidden_size", 3584),
    )
