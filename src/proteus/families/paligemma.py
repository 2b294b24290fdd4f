"""PaliGemma: every picture is one square, its patches are the visual tokens.

Beyer et al. 2024 (arXiv 2407.07726 §3.1); transformers' PaliGemmaProcessor. The <bos> and the newline that it adds
belong to the prompt, once whatever the number of pictures, and are no picture's wrapper.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from proteus.families.checkpoint import ConfigTable
from proteus.families.family import EncoderInput, Family, MediaPlan, picture_bytes
from proteus.families.flops import linear
from proteus.families.language_model import LanguageModel, read_language_model
from proteus.families.llava_encoder import SIGLIP, check_tile_px, read_image_processor, read_tower_table
from proteus.families.vision_tower import VisionTower

SIDE_PX = 224  # SiglipImageProcessor's size
SIGLIP_SO400M: dict[str, Any] = {  # transformers' tower of a config that names none
    "image_size": 224,
    "patch_size": 14,
    "hidden_size": 1152,
    "intermediate_size": 4096,
    "num_hidden_layers": 27,
}
GEMMA_2B: dict[str, Any] = {  # and its language model
    "hidden_size": 2048,
    "num_hidden_layers": 18,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PaliGemma(Family):
    name: ClassVar[str] = "PaliGemma"
    model_types: ClassVar[tuple[str, ...]] = ("paligemma",)

    tower: VisionTower
    side_px: int
    projection_width: int
    language: LanguageModel

    @classmethod
    def from_checkpoint(cls, folder: Path, config: ConfigTable) -> Self:
        """Read the folder; raises UnsupportedCheckpoint."""
        text = (
            config.table("text_config")
            if "text_config" in config
            else ConfigTable(config.name, GEMMA_2B, "text_config.")
        )
        _, tower, side_px = read_tower_table(config, (SIGLIP,), SIGLIP_SO400M)
        processor = read_image_processor(folder)
        check_tile_px(processor, side_px, size_px=SIDE_PX)
        patches = tower.patches(side_px, side_px)
        if processor.positive("image_seq_length") != patches:
            limit = f"vision_config makes {patches} patches"
            raise processor.wrong("image_seq_length", processor.get("image_seq_length"), limit)
        return cls(
            tower=tower,
            side_px=side_px,
            projection_width=config.positive("projection_dim", 2048),
            language=read_language_model(text, "gemma"),
        )

    def plan_image(self, width_px: int, height_px: int, *, images_in_request: int = 1) -> MediaPlan:
        """The same for pictures of any size."""
        decode_bytes = picture_bytes(width_px, height_px)
        patches = self.tower.patches(self.side_px, self.side_px)
        return MediaPlan(
            modality="image",
            visual_tokens=patches,
            wrapper_tokens=0,
            encoder_input=EncoderInput(kind="tiles", count=1, rows=self.side_px, cols=self.side_px),
            patches=patches,
            encoder_flops=self.tower.flops(patches) + linear(patches, self.tower.width, self.projection_width),
            decode_bytes=decode_bytes,
            self_kv_bytes=self.language.self_kv_bytes(patches),
        )
