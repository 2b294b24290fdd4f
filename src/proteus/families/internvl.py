"""InternVL (arXiv 2404.16821 §3.3): the picture becomes a grid of square tiles nearest to its ratio, and a thumbnail
of the whole unless it is one tile. Rules of transformers' InternVLProcessor and GotOcr2ImageProcessor, which cuts into
tiles whatever `crop_to_patches` of the checkpoint says: the processor always asks for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from proteus.families.checkpoint import ConfigTable, read_processor, read_processor_part
from proteus.families.family import EncoderInput, Family, MediaPlan, Modality, picture_bytes
from proteus.families.flops import linear
from proteus.families.language_model import LanguageModel, read_language_model
from proteus.families.tile_grid import MAX_TILES, nearest_grid
from proteus.families.vision_tower import VisionTower, read_square_px, read_vision_tower

DEFAULT_TOWER = VisionTower(patch_px=14, width=1024, feed_forward=4096, layers=24)
PROCESSORS = ("GotOcr2ImageProcessor", "GotOcr2ImageProcessorFast", "GotOcr2ImageProcessorPil")
START_AND_END = 2
CLASS_TOKENS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class InternVl(Family):
    name: ClassVar[str] = "InternVL"
    model_types: ClassVar[tuple[str, ...]] = ("internvl",)
    modalities: ClassVar[tuple[Modality, ...]] = ("image",)

    language: LanguageModel
    tower: VisionTower
    tile_px: int
    min_tiles: int
    max_tiles: int
    shuffle: int  # pixel shuffle turns shuffle x shuffle patches into one visual token

    @classmethod
    def from_checkpoint(cls, folder: Path, config: ConfigTable) -> Self:
        """Read the folder; raises UnsupportedCheckpoint naming file, key and value."""
        vision = config.table("vision_config")
        vision.one_of("model_type", ("internvl_vision",), "internvl_vision")
        config.one_of("vision_feature_layer", (-1,), -1)
        config.one_of("vision_feature_select_strategy", ("default",), "default")
        pictures = read_processor_part(folder, "image_processor", "preprocessor_config.json")
        pictures.one_of("image_processor_type", PROCESSORS, PROCESSORS[0])
        tile_px = read_square_px(pictures, "size", 384)
        tower = read_vision_tower(vision, DEFAULT_TOWER)
        if tile_px != read_square_px(vision, "image_size", 448):
            raise pictures.wrong("size", tile_px, "vision_config.image_size")
        shuffle = round(1 / config.one_of("downsample_ratio", (1, 0.5, 0.25), 0.5))
        side = tile_px // tower.patch_px
        if side % shuffle:
            raise config.wrong("downsample_ratio", 1 / shuffle, f"it divides {side} patches a side")
        processor = read_processor(folder)
        if processor.positive("image_seq_length", 256) != (side // shuffle) ** 2:
            raise processor.wrong("image_seq_length", processor.get("image_seq_length", 256), "tokens of one tile")
        return cls(
            language=read_language_model(config.table("text_config"), "qwen2"),
            tower=tower,
            tile_px=tile_px,
            min_tiles=pictures.positive("min_patches", 1),
            max_tiles=pictures.positive("max_patches", 12, most=MAX_TILES),
            shuffle=shuffle,
        )

    def plan_image(self, width_px: int, height_px: int, *, images_in_request: int = 1) -> MediaPlan:
        """Grid and thumbnail; raises PlanRefused for a picture without pixels."""
        decode_bytes = picture_bytes(width_px, height_px)
        cols, rows = nearest_grid(width_px, height_px, self.tile_px, min_tiles=self.min_tiles, max_tiles=self.max_tiles)
        tiles = cols * rows + (cols * rows > 1)
        patches = self.tower.patches(self.tile_px, self.tile_px)
        visual_tokens = tiles * patches // self.shuffle**2
        connector = linear(visual_tokens, self.tower.width * self.shuffle**2, self.language.hidden_size)
        connector += linear(visual_tokens, self.language.hidden_size, self.language.hidden_size)
        return MediaPlan(
            modality="image",
            visual_tokens=visual_tokens,
            wrapper_tokens=START_AND_END,
            encoder_input=EncoderInput(kind="tiles", count=tiles, rows=self.tile_px, cols=self.tile_px),
            patches=tiles * patches,
            encoder_flops=tiles * self.tower.flops(patches, class_tokens=CLASS_TOKENS) + connector,
            decode_bytes=decode_bytes,
            self_kv_bytes=self.language.self_kv_bytes(visual_tokens + START_AND_END),
        )
