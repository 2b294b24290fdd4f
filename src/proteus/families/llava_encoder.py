"""What the LLaVA line shares: a vision tower over square tiles, features from chosen layers, a two-layer connector.

The tower is run only as deep as the deepest chosen layer: what transformers computes beyond it never reaches the
language model, and an exported encoder does not hold it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proteus.families.checkpoint import ConfigTable, UnsupportedCheckpoint, read_processor, read_processor_part
from proteus.families.flops import linear
from proteus.families.vision_tower import VisionTower, read_square_px, read_vision_tower

CLIP = "clip_vision_model"
SIGLIP = "siglip_vision_model"
CLASS_TOKENS = {CLIP: 1, SIGLIP: 0}
CLASS_DEFAULTS = {
    CLIP: (224, VisionTower(patch_px=32, width=768, feed_forward=3072, layers=12)),
    SIGLIP: (224, VisionTower(patch_px=16, width=768, feed_forward=3072, layers=12)),
}
CLIP_LARGE: dict[str, Any] = {  # transformers' tower of a LLaVA config that names none
    "image_size": 336,
    "patch_size": 14,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LlavaEncoder:
    """Sizes of tower and connector. A tile is a square of `tile_px`; each gives `tile_tokens` features."""

    tower: VisionTower
    tile_px: int
    class_tokens: int  # rows in front of the patches
    keeps_class_token: bool
    depth: int  # layers that are run
    feature_width: int  # hidden size x chosen layers
    text_width: int

    @property
    def grid(self) -> int:
        """Patches along a side of a tile."""
        return self.tile_px // self.tower.patch_px

    @property
    def tile_patches(self) -> int:
        return self.grid**2

    @property
    def tile_tokens(self) -> int:
        """Features of one tile that reach the connector."""
        return self.tile_patches + (self.class_tokens if self.keeps_class_token else 0)

    def tower_flops(self, tiles: int) -> int:
        """Operations of the tower over `tiles` tiles."""
        return tiles * self.tower.flops(self.tile_patches, class_tokens=self.class_tokens, layers=self.depth)

    def connector_flops(self, rows: int) -> int:
        """Operations of the connector over `rows` features."""
        return linear(rows, self.feature_width, self.text_width) + linear(rows, self.text_width, self.text_width)

    def flops(self, tiles: int) -> int:
        """Operations of tower and connector over `tiles` tiles."""
        return self.tower_flops(tiles) + self.connector_flops(tiles * self.tile_tokens)


def read_tower_table(
    config: ConfigTable, known: Sequence[str], absent: dict[str, Any]
) -> tuple[ConfigTable, VisionTower, int]:
    """(vision config, tower, side of its picture in px) of a CLIP or SigLIP tower, the first of `known` by default;
    `absent` stands in for a vision config that is not there. Raises UnsupportedCheckpoint.
    """
    table = config.table("vision_config")
    if "vision_config" not in config:
        table = ConfigTable(table.name, absent, table.prefix)
    side_px, defaults = CLASS_DEFAULTS[table.one_of("model_type", known, known[0])]
    return table, read_vision_tower(table, defaults), read_square_px(table, "image_size", side_px)


def read_llava_encoder(
    config: ConfigTable,
    text_width: int,
    *,
    known: Sequence[str] = (CLIP,),
    absent: dict[str, Any] = CLIP_LARGE,
    strategies: Sequence[str] = ("default", "full"),
    feature_layer: int = -2,
) -> LlavaEncoder:
    """From config.json; the first of `strategies` and `feature_layer` are the defaults of the family's config class.

    Raises UnsupportedCheckpoint naming the key.
    """
    table, tower, side_px = read_tower_table(config, known, absent)
    strategy = config.one_of("vision_feature_select_strategy", strategies, strategies[0])
    depths = _depths(config, tower.layers, feature_layer)
    return LlavaEncoder(
        tower=tower,
        tile_px=side_px,
        class_tokens=CLASS_TOKENS[table.get("model_type", known[0])],
        keeps_class_token=strategy == "full",
        depth=max(depths),
        feature_width=tower.width * len(depths),
        text_width=text_width,
    )


def _depths(config: ConfigTable, layers: int, default: int) -> list[int]:
    """How many layers lie below each chosen feature; -1 is the last layer's output, 0 the embedding."""
    chosen = config.get("vision_feature_layer", default)
    chosen = chosen if isinstance(chosen, list) else [chosen]
    whole = all(isinstance(index, int) and not isinstance(index, bool) for index in chosen)
    if not chosen or not whole or not all(-layers - 1 <= index <= layers for index in chosen):
        limit = f"indices from {-layers - 1} to {layers}"
        raise config.wrong("vision_feature_layer", config.get("vision_feature_layer", default), limit)
    return [index if index >= 0 else layers + 1 + index for index in chosen]


def check_patch_count(folder: Path, encoder: LlavaEncoder) -> None:
    """Refuse a processor that puts another number of placeholders than the encoder gives features.

    transformers counts patches + `num_additional_image_tokens`, less one for the "default" strategy; a processor file
    without `patch_size` leaves the counting to the model. Raises UnsupportedCheckpoint.
    """
    processor = read_processor(folder)
    if "patch_size" not in processor:
        return
    counted = (encoder.tile_px // processor.positive("patch_size")) ** 2
    counted += int(processor.number("num_additional_image_tokens", 0))
    counted -= processor.get("vision_feature_select_strategy") == "default"
    if counted != encoder.tile_tokens:
        raise UnsupportedCheckpoint(
            f"{processor.name}: patch_size, num_additional_image_tokens and vision_feature_select_strategy "
            f"make {counted} placeholders for a tile",
            limit=f"the encoder gives {encoder.tile_tokens} features",
            fix="use the processor_config.json that was published with config.json",
        )


def read_image_processor(folder: Path) -> ConfigTable:
    """Settings of the checkpoint's image processor; raises UnsupportedCheckpoint when there are none."""
    return read_processor_part(folder, "image_processor", "preprocessor_config.json")


def read_video_processor(folder: Path) -> ConfigTable:
    """Settings of the video processor; checkpoints from before it had a file of its own share the image's.

    Raises UnsupportedCheckpoint when there are none.
    """
    own_file = "video_preprocessor_config.json"
    if (folder / own_file).exists() or "video_processor" in read_processor(folder):
        return read_processor_part(folder, "video_processor", own_file)
    return read_image_processor(folder)


def check_tile_px(table: ConfigTable, tile_px: int, *, crop_px: int | None = None, size_px: int) -> None:
    """Refuse a processor whose pictures are not squares of `tile_px`, the only size that the tower takes.

    `size_px` and `crop_px` are the processor class's defaults, None where it does not crop. Raises
    UnsupportedCheckpoint.
    """
    size = table.get("size", size_px)
    if isinstance(size, dict) and size.get("shortest_edge") is not None:
        size = size["shortest_edge"]
    if ConfigTable(table.name, {"size": size}, table.prefix).sides_px("size") != (tile_px, tile_px):
        raise table.wrong("size", table.get("size", size_px), f"vision_config.image_size = {tile_px}")
    if ("crop_size" in table or crop_px is not None) and table.flag("do_center_crop", crop_px is not None):
        crop = table.sides_px("crop_size", crop_px)
        if crop != (tile_px, tile_px):
            raise table.wrong("crop_size", table.get("crop_size", crop_px), f"vision_config.image_size = {tile_px}")
