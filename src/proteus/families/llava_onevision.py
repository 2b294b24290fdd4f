"""LLaVA-OneVision: a picture alone is cut as in LLaVA-NeXT, then shrunk to a cap; pictures together are one tile each.

Li et al. 2024, "LLaVA-OneVision: Easy Visual Task Transfer" (arXiv 2408.03326 §3.2); transformers'
LlavaOnevisionProcessor. A frame of a video is one tile, halved in both directions; one newline ends the video.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from proteus.families.anyres import Kept, Pinpoints, best_pinpoint, kept_features, read_pinpoints
from proteus.families.checkpoint import ConfigTable, UnsupportedCheckpoint, read_processor
from proteus.families.family import (
    ASSUMED_FRAMES_PER_S,
    EncoderInput,
    Family,
    MediaPlan,
    Modality,
    picture_bytes,
    video_bytes,
)
from proteus.families.language_model import LanguageModel, read_language_model
from proteus.families.llava_encoder import (
    SIGLIP,
    LlavaEncoder,
    check_tile_px,
    read_image_processor,
    read_llava_encoder,
    read_video_processor,
)

PINPOINTS: Pinpoints = tuple((384 * rows, 384 * cols) for rows in range(1, 7) for cols in range(1, 7))
SIDE_PX = 384  # of the image and video processor classes, which do not crop
PREFIX = "anyres_max_"
SIGLIP_SO400M: dict[str, Any] = {  # transformers' tower of a config that names none
    "image_size": 384,
    "patch_size": 14,
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 26,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LlavaOnevision(Family):
    name: ClassVar[str] = "LLaVA-OneVision"
    model_types: ClassVar[tuple[str, ...]] = ("llava_onevision",)
    modalities: ClassVar[tuple[Modality, ...]] = ("image", "video")

    encoder: LlavaEncoder
    pinpoints: Pinpoints
    max_tiles: int  # worth of features; more are interpolated down to it
    language: LanguageModel

    @classmethod
    def from_checkpoint(cls, folder: Path, config: ConfigTable) -> Self:
        """Read the folder; raises UnsupportedCheckpoint."""
        language = read_language_model(config.table("text_config"), "qwen2")
        encoder = read_llava_encoder(
            config,
            language.hidden_size,
            known=(SIGLIP,),
            absent=SIGLIP_SO400M,
            strategies=("full",),
            feature_layer=-1,
        )
        images = read_image_processor(folder)
        for table in (images, read_video_processor(folder)):
            check_tile_px(table, encoder.tile_px, size_px=SIDE_PX)
        max_tiles = _max_tiles(config)
        _check_processor(read_processor(folder), encoder, max_tiles)
        pinpoints = read_pinpoints(config, images, PINPOINTS, encoder.tile_px)
        return cls(encoder=encoder, pinpoints=pinpoints, max_tiles=max_tiles, language=language)

    def plan_image(self, width_px: int, height_px: int, *, images_in_request: int = 1) -> MediaPlan:
        """A picture among others is padded to a square and is one tile and a newline."""
        decode_bytes = picture_bytes(width_px, height_px)
        if images_in_request > 1:
            return self._plan("image", self.encoder.tile_patches + 1, 1, decode_bytes)
        tile_px, grid = self.encoder.tile_px, self.encoder.grid
        best = best_pinpoint(width_px, height_px, self.pinpoints)
        rows, cols = best[0] // tile_px, best[1] // tile_px
        kept = self._shrunk(kept_features(width_px, height_px, rows * grid, cols * grid))
        tokens = self.encoder.tile_patches + kept.rows * (kept.cols + 1)
        return self._plan("image", tokens, 1 + rows * cols, decode_bytes)

    def plan_video(
        self, num_frames: int, width_px: int, height_px: int, *, frames_per_s: float = ASSUMED_FRAMES_PER_S
    ) -> MediaPlan:
        """The same for frames of any size. Frames go through the connector before they are halved."""
        decode_bytes = video_bytes(num_frames, width_px, height_px)
        return self._plan("video", num_frames * math.ceil(self.encoder.grid / 2) ** 2 + 1, num_frames, decode_bytes)

    def _shrunk(self, kept: Kept) -> Kept:
        ratio = math.sqrt(kept.rows * kept.cols / (self.max_tiles * self.encoder.tile_patches))
        return Kept(int(kept.rows // ratio), int(kept.cols // ratio)) if ratio > 1.1 else kept

    def _plan(self, modality: Modality, tokens: int, tiles: int, decode_bytes: int) -> MediaPlan:
        tile_px = self.encoder.tile_px
        return MediaPlan(
            modality=modality,
            visual_tokens=tokens,
            wrapper_tokens=0,
            encoder_input=EncoderInput(kind="tiles", count=tiles, rows=tile_px, cols=tile_px),
            patches=tiles * self.encoder.tile_patches,
            encoder_flops=self.encoder.flops(tiles),
            decode_bytes=decode_bytes,
            self_kv_bytes=self.language.self_kv_bytes(tokens),
        )


def _max_tiles(table: ConfigTable) -> int:
    value = table.get("vision_aspect_ratio", f"{PREFIX}9")
    digits = str(value).removeprefix(PREFIX)
    if not str(value).startswith(PREFIX) or not digits.isascii() or not digits.isdigit() or int(digits) < 1:
        raise table.wrong("vision_aspect_ratio", value, f"{PREFIX} and a whole number above 0")
    return int(digits)


def _check_processor(processor: ConfigTable, encoder: LlavaEncoder, max_tiles: int) -> None:
    """Refuse a processor whose placeholders would not match the encoder's features."""
    if processor.get("num_image_tokens", encoder.tile_patches) != encoder.tile_patches:
        raise processor.wrong("num_image_tokens", processor.get("num_image_tokens"), f"{encoder.tile_patches} patches")
    processor.one_of("vision_feature_select_strategy", ("full",), "full")
    if _max_tiles(processor) != max_tiles:
        raise UnsupportedCheckpoint(
            f"{processor.name}: vision_aspect_ratio caps at {_max_tiles(processor)} tiles",
            limit=f"config.json caps at {max_tiles}",
            fix="use the processor_config.json that was published with config.json",
        )
