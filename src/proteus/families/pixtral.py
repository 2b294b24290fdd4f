"""Pixtral: a picture keeps its shape and is made smaller only when a side is over the limit; each row of patches ends
with a break token and the last one with an end token.

Rule: PixtralImageProcessor and PixtralProcessor; Pixtral 12B, arXiv 2410.07073 §2.2. Published as
LlavaForConditionalGeneration. Operations are those of attention within one picture: pictures of one request do not see
each other, and the pixels that pad them to one size are not counted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from proteus.families import flops
from proteus.families.checkpoint import ConfigTable, read_processor, read_processor_part
from proteus.families.family import EncoderInput, Family, MediaPlan, PlanRefused, picture_bytes
from proteus.families.language_model import LanguageModel, read_language_model
from proteus.families.vision_tower import VisionTower, read_vision_tower

DEFAULT_TOWER = VisionTower(patch_px=16, width=1024, feed_forward=4096, layers=24)
IMAGE_PROCESSORS = ("PixtralImageProcessor", "PixtralImageProcessorFast", "PixtralImageProcessorPil")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pixtral(Family):
    """LLaVA checkpoints whose vision tower is Pixtral's."""

    name = "Pixtral"
    model_types = ("llava/pixtral",)

    language: LanguageModel
    tower: VisionTower
    longest_edge_px: int

    @classmethod
    def from_checkpoint(cls, folder: Path, config: ConfigTable) -> Self:
        """Read the folder; raises UnsupportedCheckpoint."""
        config.one_of("vision_feature_layer", (-1,), -2)
        config.one_of("vision_feature_select_strategy", ("full",), "default")
        tower = read_tower(config)
        return cls(
            language=read_language_model(config.table("text_config"), "llama"),
            tower=tower,
            longest_edge_px=read_longest_edge_px(folder, tower.patch_px, merge=1),
        )

    def plan_image(self, width_px: int, height_px: int, *, images_in_request: int = 1) -> MediaPlan:
        """Plan one picture; raises PlanRefused without area and where the shorter side would shrink to nothing."""
        cols, rows = token_grid(width_px, height_px, longest_edge_px=self.longest_edge_px, cell_px=self.tower.patch_px)
        patches, width = rows * cols, self.language.hidden_size
        connector = flops.linear(patches, self.tower.width, width) + flops.linear(patches, width, width)
        return row_plan(
            self.language,
            cols,
            rows,
            merge=1,
            encoder_flops=tower_flops(self.tower, patches) + connector,
            decode_bytes=picture_bytes(width_px, height_px),
        )


def token_grid(width_px: int, height_px: int, *, longest_edge_px: int, cell_px: int) -> tuple[int, int]:
    """(cols, rows) of visual tokens: sides floored when scaled to the longest edge, then rounded up to whole cells.

    Raises PlanRefused when a side is below 1 px, before or after scaling.
    """
    picture_bytes(width_px, height_px)
    shrink = max(height_px / longest_edge_px, width_px / longest_edge_px)
    width, height = width_px, height_px
    if shrink > 1:
        width, height = math.floor(width_px / shrink), math.floor(height_px / shrink)
    if min(width, height) < 1:
        raise PlanRefused(
            f"{width_px}x{height_px} px: the shorter side shrinks to nothing",
            limit=f"longest side of {longest_edge_px} px after scaling",
            fix="crop or pad it",
        )
    return (width - 1) // cell_px + 1, (height - 1) // cell_px + 1


def tower_flops(tower: VisionTower, patches: int) -> int:
    """Operations of the tower, whose feed-forward is gated, on one picture."""
    embedding = flops.linear(patches, 3 * tower.patch_px**2, tower.width)
    return embedding + tower.layers * flops.layer(patches, patches, tower.width, tower.feed_forward, gated=True)


def row_plan(
    language: LanguageModel, cols: int, rows: int, *, merge: int, encoder_flops: int, decode_bytes: int
) -> MediaPlan:
    """The plan of `rows` of `cols` visual tokens, a break or end token behind each row."""
    return MediaPlan(
        modality="image",
        visual_tokens=rows * cols,
        wrapper_tokens=rows,
        encoder_input=EncoderInput(kind="grid", count=1, rows=rows * merge, cols=cols * merge),
        patches=rows * cols * merge**2,
        encoder_flops=encoder_flops,
        decode_bytes=decode_bytes,
        self_kv_bytes=language.self_kv_bytes(rows * cols + rows),
    )


def read_tower(config: ConfigTable) -> VisionTower:
    """The vision tower; raises UnsupportedCheckpoint where it is none of Pixtral's."""
    vision = config.table("vision_config")
    vision.one_of("model_type", ("pixtral",))
    return read_vision_tower(vision, DEFAULT_TOWER)


def read_longest_edge_px(folder: Path, patch_px: int, *, merge: int) -> int:
    """The limit of a side, once processor and model agree on patches. Raises UnsupportedCheckpoint.

    The processor's own patch size is used; that of its image processor is overruled in every call.
    """
    processor = read_processor(folder)
    for key, of_model, default in (("patch_size", patch_px, 16), ("spatial_merge_size", merge, 1)):
        if (value := processor.positive(key, default)) != of_model:
            raise processor.wrong(key, value, f"the model's {of_model}")
    table = read_processor_part(folder, "image_processor", "preprocessor_config.json")
    table.one_of("image_processor_type", IMAGE_PROCESSORS, IMAGE_PROCESSORS[0])
    table.one_of("do_resize", (True,), True)
    table.one_of("do_center_crop", (False,), False)
    return table.table("size").positive("longest_edge", None if "size" in table else 1024)
