"""Gemma 3: a picture is one square pooled to `mm_tokens_per_image`; "pan & scan" adds crops of long pictures.

Gemma Team 2025 (arXiv 2503.19786 §2.1); transformers' Gemma3Processor. That class leaves pan & scan off unless a call
asks for it; here `do_pan_and_scan: true` in the image processor's settings is what asks.

Wrapper tokens are those of Gemma's own tokenizer, where "\\n\\n" and each word of the sentences below are one token. It
may join the newlines with newlines of the prompt beside them, so a prompt can be shorter by up to two for a picture.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from proteus.families.checkpoint import ConfigTable, read_processor
from proteus.families.family import EncoderInput, Family, MediaPlan, picture_bytes
from proteus.families.flops import linear
from proteus.families.language_model import LanguageModel, read_language_model
from proteus.families.llava_encoder import SIGLIP, check_tile_px, read_image_processor, read_tower_table
from proteus.families.vision_tower import VisionTower

SIDE_PX = 224  # Gemma3ImageProcessor's size
SIGLIP_BASE: dict[str, Any] = {}  # transformers' tower of a config that names none has SigLIP's own defaults
AROUND_SQUARE = 4  # "\n\n", <start_of_image>, <end_of_image>, "\n\n"
BEFORE_WHOLE = 6  # "Here is the original image "
BEFORE_CROPS = 11  # " and here are some crops to help you see better "
BETWEEN_CROPS = 1  # " "


@dataclass(frozen=True, slots=True, kw_only=True)
class PanAndScan:
    """When and how a long picture is cut into crops along its longer side."""

    min_crop_px: int
    max_crops: int
    min_ratio: float

    def crops(self, width_px: int, height_px: int) -> int:
        """Crops beside the whole picture; 0 when its ratio or they would be too small."""
        long_px, short_px = max(width_px, height_px), min(width_px, height_px)
        if long_px / short_px < self.min_ratio:
            return 0
        wanted = min(long_px // self.min_crop_px, math.floor(long_px / short_px + 0.5))
        crops = min(self.max_crops, max(2, wanted))
        return crops if min(math.ceil(long_px / crops), short_px) >= self.min_crop_px else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma3(Family):
    name: ClassVar[str] = "Gemma 3"
    model_types: ClassVar[tuple[str, ...]] = ("gemma3",)

    tower: VisionTower
    side_px: int
    square_tokens: int  # of one square after pooling
    pan_and_scan: PanAndScan | None
    language: LanguageModel

    @classmethod
    def from_checkpoint(cls, folder: Path, config: ConfigTable) -> Self:
        """Read the folder; raises UnsupportedCheckpoint."""
        _, tower, side_px = read_tower_table(config, (SIGLIP,), SIGLIP_BASE)
        images = read_image_processor(folder)
        check_tile_px(images, side_px, size_px=SIDE_PX)
        tokens = config.positive("mm_tokens_per_image", 256)
        _check_pooling(config, tokens, side_px // tower.patch_px)
        processor = read_processor(folder)
        if processor.positive("image_seq_length", 256) != tokens:
            limit = f"mm_tokens_per_image = {tokens}"
            raise processor.wrong("image_seq_length", processor.get("image_seq_length"), limit)
        return cls(
            tower=tower,
            side_px=side_px,
            square_tokens=tokens,
            pan_and_scan=_pan_and_scan(images),
            language=read_language_model(config.table("text_config"), "gemma3_text"),
        )

    def plan_image(self, width_px: int, height_px: int, *, images_in_request: int = 1) -> MediaPlan:
        """The whole picture as one square, and each crop as another."""
        decode_bytes = picture_bytes(width_px, height_px)
        crops = self.pan_and_scan.crops(width_px, height_px) if self.pan_and_scan else 0
        squares = 1 + crops
        tokens = squares * self.square_tokens
        wrapper = squares * AROUND_SQUARE
        if crops:
            wrapper += BEFORE_WHOLE + BEFORE_CROPS + (crops - 1) * BETWEEN_CROPS
        patches = self.tower.patches(self.side_px, self.side_px)
        connector = linear(self.square_tokens, self.tower.width, self.language.hidden_size)
        return MediaPlan(
            modality="image",
            visual_tokens=tokens,
            wrapper_tokens=wrapper,
            encoder_input=EncoderInput(kind="tiles", count=squares, rows=self.side_px, cols=self.side_px),
            patches=squares * patches,
            encoder_flops=squares * (self.tower.flops(patches) + connector),
            decode_bytes=decode_bytes,
            self_kv_bytes=self.language.self_kv_bytes(tokens + wrapper),
        )


def _check_pooling(config: ConfigTable, tokens: int, grid: int) -> None:
    """Refuse a number of tokens that average pooling of the grid does not give."""
    side = math.isqrt(tokens)
    if side**2 != tokens or side > grid or grid // (grid // side) != side:
        raise config.wrong("mm_tokens_per_image", tokens, f"a square that {grid} x {grid} patches are pooled to")


def _pan_and_scan(images: ConfigTable) -> PanAndScan | None:
    if not images.flag("do_pan_and_scan", False):
        return None
    min_crop_px = images.positive("pan_and_scan_min_crop_size", 256)
    max_crops = images.positive("pan_and_scan_max_num_crops", 4)
    if min_crop_px < max_crops:
        raise images.wrong("pan_and_scan_min_crop_size", min_crop_px, "the number of crops, or some would be empty")
    min_ratio = images.number("pan_and_scan_min_ratio_to_activate", 1.2)
    return PanAndScan(min_crop_px=min_crop_px, max_crops=max_crops, min_ratio=min_ratio)
