"""Mllama, Llama 3.2 Vision (arXiv 2407.21783 §7): the picture fills part of a canvas of square tiles, and the language
model looks at the tiles' features by cross-attention. The prompt holds one token for a picture. Rules of transformers'
MllamaProcessor and MllamaImageProcessor.

The encoder is always given `max_image_tiles` tiles and looks across all of them: only pairs of padding are masked, so
padding tiles are work and cannot be left out. The cross-attention masks them, so their rows need not be kept: rows are
those of the tiles in use. transformers' own cache keeps the padding too. The product that makes a mask is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Self

from proteus.families.checkpoint import ConfigTable, read_processor_part
from proteus.families.family import EncoderInput, Family, MediaPlan, Modality, picture_bytes
from proteus.families.flops import layer, linear
from proteus.families.language_model import LanguageModel, read_language_model
from proteus.families.tile_grid import MAX_TILES
from proteus.families.vision_tower import RGB, VisionTower, read_square_px, read_vision_tower

DEFAULT_TOWER = VisionTower(patch_px=14, width=1280, feed_forward=5120, layers=32)
DEFAULT_INTERMEDIATE = [3, 7, 15, 23, 30]
DEFAULT_CROSS_LAYERS = [3, 8, 13, 18, 23, 28, 33, 38]
DEFAULT_CANVASES = [[1, 1], [1, 2], [1, 3], [1, 4], [2, 1], [2, 2], [3, 1], [4, 1]]
PROCESSORS = ("MllamaImageProcessor", "MllamaImageProcessorFast", "MllamaImageProcessorPil")
PLACEHOLDERS = 1
CLASS_TOKENS = 1
ROWS_MULTIPLE = 8  # rows of a tile are padded to it


@dataclass(frozen=True, slots=True, kw_only=True)
class Mllama(Family):
    name: ClassVar[str] = "Mllama"
    model_types: ClassVar[tuple[str, ...]] = ("mllama",)
    modalities: ClassVar[tuple[Modality, ...]] = ("image",)

    language: LanguageModel
    tower: VisionTower
    global_layers: int  # over the output of the tower, of the same sizes
    output_width: int  # of a row given to the connector: the output and those of some layers beside each other
    tile_px: int
    max_tiles: int

    @classmethod
    def from_checkpoint(cls, folder: Path, config: ConfigTable) -> Self:
        """Read the folder; raises UnsupportedCheckpoint naming file, key and value."""
        vision, text = config.table("vision_config"), config.table("text_config")
        pictures = read_processor_part(folder, "image_processor", "preprocessor_config.json")
        pictures.one_of("image_processor_type", PROCESSORS, PROCESSORS[0])
        pictures.one_of("do_resize", (True,), True)
        pictures.one_of("do_pad", (True,), True)
        tile_px = read_square_px(pictures, "size", 224)
        if tile_px != read_square_px(vision, "image_size", 448):
            raise pictures.wrong("size", tile_px, "vision_config.image_size")
        max_tiles = pictures.positive("max_image_tiles", 4, most=MAX_TILES)
        if max_tiles != vision.positive("max_num_tiles", 4):
            raise pictures.wrong("max_image_tiles", max_tiles, "vision_config.max_num_tiles")
        canvases = vision.get("supported_aspect_ratios", DEFAULT_CANVASES)
        if canvases != [list(canvas) for canvas in _canvases(max_tiles)]:
            raise vision.wrong(
                "supported_aspect_ratios", canvases, f"every canvas of up to {max_tiles} tiles, in order"
            )
        tower = read_vision_tower(vision, DEFAULT_TOWER)
        kept = vision.layer_numbers("intermediate_layers_indices", DEFAULT_INTERMEDIATE)
        output_width = tower.width * (1 + len(kept))
        if vision.positive("vision_output_dim", 7680) != output_width:
            raise vision.wrong(
                "vision_output_dim", vision.get("vision_output_dim", 7680), f"{output_width} of its layers"
            )
        layers = text.positive("num_hidden_layers", 40)
        looking = text.layer_numbers("cross_attention_layers", DEFAULT_CROSS_LAYERS)
        cross = {number for number in looking if number < layers}
        return cls(
            language=read_language_model(
                text, "mllama_text_model", cross_layers=sum(number < layers for number in cross)
            ),
            tower=tower,
            global_layers=vision.positive("num_global_layers", 8),
            output_width=output_width,
            tile_px=tile_px,
            max_tiles=max_tiles,
        )

    def plan_image(self, width_px: int, height_px: int, *, images_in_request: int = 1) -> MediaPlan:
        """Tiles of the canvas; raises PlanRefused for a picture without pixels."""
        decode_bytes = picture_bytes(width_px, height_px)
        patches = self.tower.patches(self.tile_px, self.tile_px)
        cross_rows = self._tiles(width_px, height_px) * (patches + CLASS_TOKENS)
        return MediaPlan(
            modality="image",
            visual_tokens=PLACEHOLDERS,
            wrapper_tokens=0,
            encoder_input=EncoderInput(kind="tiles", count=self.max_tiles, rows=self.tile_px, cols=self.tile_px),
            patches=self.max_tiles * patches,
            encoder_flops=self._flops(patches),
            decode_bytes=decode_bytes,
            self_kv_bytes=self.language.self_kv_bytes(PLACEHOLDERS),
            cross_kv_bytes=self.language.cross_kv_bytes(cross_rows),
            cross_rows=cross_rows,
        )

    def _tiles(self, width_px: int, height_px: int) -> int:
        """Tiles of the chosen canvas: the one that enlarges the picture least, else the one that shrinks it least."""
        best, fewest = 0.0, 0
        for rows, cols in _canvases(self.max_tiles):
            scale, tiles = min(rows * self.tile_px / height_px, cols * self.tile_px / width_px), rows * cols
            better = best < scale if best < 1 else 1 <= scale < best
            if better or (scale == best and tiles < fewest):
                best, fewest = scale, tiles
        return fewest

    def _flops(self, patches: int) -> int:
        rows = patches + CLASS_TOKENS
        padded = self.max_tiles * (rows + -rows % ROWS_MULTIPLE)
        embedding = linear(self.max_tiles * patches, RGB * self.tower.patch_px**2, self.tower.width)
        layers = self.tower.layers + self.global_layers
        encoder = layers * layer(padded, padded, self.tower.width, self.tower.feed_forward)
        return embedding + encoder + linear(self.max_tiles * rows, self.output_width, self.language.hidden_size)


@lru_cache(maxsize=16)
def _canvases(max_tiles: int) -> tuple[tuple[int, int], ...]:
    sides = range(1, max_tiles + 1)
    return tuple((one, other) for one in sides for other in sides if one * other <= max_tiles)
