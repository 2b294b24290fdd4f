"""LLaVA-NeXT (1.6): one tile of the whole picture and the tiles of its best pinpoint, a newline after each row.

Liu et al. 2024, "LLaVA-NeXT: Improved reasoning, OCR, and world knowledge"; transformers' LlavaNextProcessor.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from proteus.families.anyres import Pinpoints, best_pinpoint, kept_features, read_pinpoints
from proteus.families.checkpoint import ConfigTable
from proteus.families.family import EncoderInput, Family, MediaPlan, picture_bytes
from proteus.families.language_model import LanguageModel, read_language_model
from proteus.families.llava_encoder import (
    LlavaEncoder,
    check_patch_count,
    check_tile_px,
    read_image_processor,
    read_llava_encoder,
)

PINPOINTS: Pinpoints = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))
SIDE_PX = 224  # LlavaNextImageProcessor's size and crop_size


@dataclass(frozen=True, slots=True, kw_only=True)
class LlavaNext(Family):
    name: ClassVar[str] = "LLaVA-NeXT"
    model_types: ClassVar[tuple[str, ...]] = ("llava_next",)

    encoder: LlavaEncoder
    pinpoints: Pinpoints
    language: LanguageModel

    @classmethod
    def from_checkpoint(cls, folder: Path, config: ConfigTable) -> Self:
        """Read the folder; raises UnsupportedCheckpoint. Tiles keep no class token: rows must be whole."""
        language = read_language_model(config.table("text_config"), "llama")
        encoder = read_llava_encoder(config, language.hidden_size, strategies=("default",))
        processor = read_image_processor(folder)
        check_tile_px(processor, encoder.tile_px, size_px=SIDE_PX, crop_px=SIDE_PX)
        check_patch_count(folder, encoder)
        pinpoints = read_pinpoints(config, processor, PINPOINTS, encoder.tile_px)
        return cls(encoder=encoder, pinpoints=pinpoints, language=language)

    def plan_image(self, width_px: int, height_px: int, *, images_in_request: int = 1) -> MediaPlan:
        """Features of the whole picture, then those of the tiles without padding and one newline a row."""
        decode_bytes = picture_bytes(width_px, height_px)
        tile_px, grid = self.encoder.tile_px, self.encoder.grid
        best = best_pinpoint(width_px, height_px, self.pinpoints)
        rows, cols = best[0] // tile_px, best[1] // tile_px
        kept = kept_features(width_px, height_px, rows * grid, cols * grid)
        tokens, tiles = self.encoder.tile_tokens + kept.rows * (kept.cols + 1), 1 + rows * cols
        return MediaPlan(
            modality="image",
            visual_tokens=tokens,
            wrapper_tokens=0,
            encoder_input=EncoderInput(kind="tiles", count=tiles, rows=tile_px, cols=tile_px),
            patches=tiles * self.encoder.tile_patches,
            encoder_flops=self.encoder.flops(tiles),
            decode_bytes=decode_bytes,
            self_kv_bytes=self.language.self_kv_bytes(tokens),
        )
