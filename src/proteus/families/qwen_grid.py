"""What the Qwen-VL families share: sides rounded to whole cells of merged patches, one grid for each pair of frames.

Rule: `smart_resize` of Qwen2VLImageProcessor and its video twin; Qwen2-VL, arXiv 2409.12191 §2.1. Counted are the
placeholders that the processor makes of one placeholder in the text: `<|vision_start|>` and `<|vision_end|>` around it
belong to the chat template, so they are text. M-RoPE numbers positions and changes no count.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path

from proteus.families import flops
from proteus.families.checkpoint import ConfigTable, read_processor_part
from proteus.families.family import (
    ASSUMED_FRAMES_PER_S,
    EncoderInput,
    Family,
    MediaPlan,
    Modality,
    PlanRefused,
    picture_bytes,
)
from proteus.families.language_model import LanguageModel, read_language_model

MAX_ASPECT_RATIO = 200
IMAGE_PROCESSORS = ("Qwen2VLImageProcessor", "Qwen2VLImageProcessorFast", "Qwen2VLImageProcessorPil")
RGB_CHANNELS = 3


@dataclass(frozen=True, slots=True)
class PixelRange:
    """Pixels of a resized picture, or of a whole resized clip (Qwen3-VL)."""

    min_pixels: int
    max_pixels: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchRule:
    """How pixels become patches and patches become visual tokens."""

    patch_px: int
    merge: int  # patches a side that one visual token stands for
    patch_frames: int  # frames that one patch covers; a picture is repeated as often

    @property
    def cell_px(self) -> int:
        """Side of one visual token; resized sides are multiples of it."""
        return self.patch_px * self.merge

    @property
    def patch_values(self) -> int:
        """Numbers in one patch."""
        return RGB_CHANNELS * self.patch_frames * self.patch_px * self.patch_px

    def grid(self, num_frames: int, width_px: int, height_px: int) -> Grid:
        """Patches of frames of a fitted size; the last frame is repeated until they fill their patches."""
        pairs = -(-num_frames // self.patch_frames)
        return Grid(frames=pairs, rows=height_px // self.patch_px, cols=width_px // self.patch_px)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Patches of a medium: `frames` grids (HF `grid_thw`), each attending to itself alone."""

    frames: int
    rows: int
    cols: int

    @property
    def frame_patches(self) -> int:
        return self.rows * self.cols

    @property
    def patches(self) -> int:
        return self.frames * self.frame_patches


@dataclass(frozen=True, slots=True, kw_only=True)
class QwenVl(Family):
    """Base of the families: the plan, given the family's own operations and video rule."""

    modalities = ("image", "video")

    language: LanguageModel
    patch_rule: PatchRule
    image_pixels: PixelRange
    video_pixels: PixelRange

    @abstractmethod
    def encoder_flops(self, grid: Grid) -> int:
        """Operations of vision tower and merger on one medium."""

    def plan_image(self, width_px: int, height_px: int, *, images_in_request: int = 1) -> MediaPlan:
        """Plan one picture; raises PlanRefused without area and where a side is over 200 times the other."""
        decode_bytes = picture_bytes(width_px, height_px)
        fitted = fit_sides(width_px, height_px, cell_px=self.patch_rule.cell_px, pixels=self.image_pixels)
        return self.plan("image", self.patch_rule.grid(1, *fitted), decode_bytes)

    def plan_video(
        self, num_frames: int, width_px: int, height_px: int, *, frames_per_s: float = ASSUMED_FRAMES_PER_S
    ) -> MediaPlan:
        """Plan a clip, each frame fitted like a picture; raises PlanRefused without frames or as for a picture."""
        decode_bytes = clip_bytes(num_frames, width_px, height_px)
        fitted = fit_sides(width_px, height_px, cell_px=self.patch_rule.cell_px, pixels=self.video_pixels)
        return self.plan("video", self.patch_rule.grid(num_frames, *fitted), decode_bytes)

    def plan(self, modality: Modality, grid: Grid, decode_bytes: int, wrapper_tokens: int = 0) -> MediaPlan:
        """The plan of a medium once its grid is known."""
        visual_tokens = grid.patches // self.patch_rule.merge**2
        return MediaPlan(
            modality=modality,
            visual_tokens=visual_tokens,
            wrapper_tokens=wrapper_tokens,
            encoder_input=EncoderInput(kind="grid", count=grid.frames, rows=grid.rows, cols=grid.cols),
            patches=grid.patches,
            encoder_flops=self.encoder_flops(grid),
            decode_bytes=decode_bytes,
            self_kv_bytes=self.language.self_kv_bytes(visual_tokens + wrapper_tokens),
        )


def fit_sides(width_px: int, height_px: int, *, cell_px: int, pixels: PixelRange) -> tuple[int, int]:
    """(width, height) in multiples of `cell_px`: rounded to the nearest, ties to even, then scaled into `pixels`.

    Scaling down floors, scaling up ceils, so the range holds except for the one cell that a side keeps. Raises
    PlanRefused for an aspect ratio over 200.
    """
    require_shape(width_px, height_px)
    width, height = (round(side / cell_px) * cell_px for side in (width_px, height_px))
    if width * height > pixels.max_pixels:
        shrink = math.sqrt((height_px * width_px) / pixels.max_pixels)
        return floor_to_cell(width_px / shrink, cell_px), floor_to_cell(height_px / shrink, cell_px)
    if width * height < pixels.min_pixels:
        grow = math.sqrt(pixels.min_pixels / (height_px * width_px))
        return ceil_to_cell(width_px * grow, cell_px), ceil_to_cell(height_px * grow, cell_px)
    return width, height


def floor_to_cell(side_px: float, cell_px: int) -> int:
    """The whole cells that fit, at least one."""
    return max(cell_px, math.floor(side_px / cell_px) * cell_px)


def ceil_to_cell(side_px: float, cell_px: int) -> int:
    """The whole cells that cover the side."""
    return math.ceil(side_px / cell_px) * cell_px


def require_shape(width_px: int, height_px: int) -> None:
    """Raises PlanRefused for an aspect ratio over 200."""
    ratio = max(width_px, height_px) / min(width_px, height_px)
    if ratio > MAX_ASPECT_RATIO:
        raise PlanRefused(
            f"{width_px}x{height_px} px: one side is {ratio:.1f} times the other",
            limit=f"{MAX_ASPECT_RATIO} times",
            fix="crop or pad it",
        )


def clip_bytes(num_frames: int, width_px: int, height_px: int, least: int = 1) -> int:
    """Bytes of a clip as 8-bit RGB; raises PlanRefused for fewer than `least` frames or a side below 1 px."""
    if num_frames < least:
        raise PlanRefused(
            f"a clip of {num_frames} frames", limit=f"{least} frames at least", fix="send a longer clip or a picture"
        )
    return num_frames * picture_bytes(width_px, height_px)


def merger_flops(grid: Grid, width: int, width_out: int, merge: int) -> int:
    """Two matrices on the concatenated patches of each visual token."""
    tokens, wide = grid.patches // merge**2, width * merge**2
    return flops.linear(tokens, wide, wide) + flops.linear(tokens, wide, width_out)


def read_patch_rule(vision: ConfigTable, patch_px: int) -> PatchRule:
    """From the vision tower's config; `patch_px` stands in where it names none. Raises UnsupportedCheckpoint."""
    vision.one_of("in_channels", (RGB_CHANNELS,), RGB_CHANNELS)
    return PatchRule(
        patch_px=vision.positive("patch_size", patch_px),
        merge=vision.positive("spatial_merge_size", 2),
        patch_frames=vision.positive("temporal_patch_size", 2),
    )


def read_image_pixels(folder: Path, rule: PatchRule) -> PixelRange:
    """The image processor's range, once its patches are those of the tower. Raises UnsupportedCheckpoint."""
    table = read_processor_part(folder, "image_processor", "preprocessor_config.json")
    table.one_of("image_processor_type", IMAGE_PROCESSORS, IMAGE_PROCESSORS[0])
    agree(table, rule, patch_px=14)
    return read_pixels(table, PixelRange(56 * 56, 28 * 28 * 1280))


def read_video_processor(folder: Path, name: str, rule: PatchRule, patch_px: int) -> ConfigTable:
    """The video processor's settings, which an older folder keeps with the image processor's.

    Raises UnsupportedCheckpoint where they do not fit the tower or ask for another rule than ours.
    """
    own_file = "video_preprocessor_config.json"
    own_file = own_file if (folder / own_file).exists() else "preprocessor_config.json"
    table = read_processor_part(folder, "video_processor", own_file)
    table.one_of("video_processor_type", (name,), name)
    table.one_of("cap_pixels_per_frame", (False,), False)
    agree(table, rule, patch_px)
    return table


def agree(table: ConfigTable, rule: PatchRule, patch_px: int) -> None:
    """Raises UnsupportedCheckpoint unless a processor resizes and cuts what the tower takes."""
    table.one_of("do_resize", (True,), True)
    wanted = (("patch_size", rule.patch_px, patch_px), ("merge_size", rule.merge, 2))
    for key, of_tower, default in (*wanted, ("temporal_patch_size", rule.patch_frames, 2)):
        if (value := table.positive(key, default)) != of_tower:
            raise table.wrong(key, value, f"the vision tower's {of_tower}")


def read_pixels(table: ConfigTable, default: PixelRange) -> PixelRange:
    """`min_pixels` and `max_pixels` where given, else the edges of `size`, which count pixels as well.

    Raises UnsupportedCheckpoint for a `size` that lacks one.
    """
    edges = {"shortest_edge": default.min_pixels, "longest_edge": default.max_pixels}
    size = table.table("size") if "size" in table else ConfigTable(table.name, edges, f"{table.prefix}size.")
    return PixelRange(
        table.positive("min_pixels") if "min_pixels" in table else size.positive("shortest_edge"),
        table.positive("max_pixels") if "max_pixels" in table else size.positive("longest_edge"),
    )


def read_text(config: ConfigTable, model_type: str) -> LanguageModel:
    """The language model, whose keys a published config keeps at the top. Raises UnsupportedCheckpoint."""
    table = config.table("text_config") if "text_config" in config else config
    table.one_of("use_sliding_window", (False,), False)
    values = {key: value for key, value in table.values.items() if key != "model_type"}
    return read_language_model(ConfigTable(table.name, values, table.prefix), model_type)
