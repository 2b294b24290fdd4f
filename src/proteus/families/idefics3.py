"""Idefics3 (arXiv 2408.12637 §2.2) and SmolVLM (arXiv 2504.05299): the picture is scaled to one longest side, its sides
rounded up to whole tiles, and the tiles are followed by the whole picture in one tile. Pixel shuffle makes the rows of
a tile fewer. Rules of transformers' Idefics3Processor, SmolVLMProcessor and their image processors, not of their
`_get_num_multimodal_tokens`, which rounds the shorter side otherwise.

The blank line between the last row of tiles and the whole picture is one token or two: tokenizer.json tells.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from tokenizers import Tokenizer

from proteus.families.checkpoint import ConfigTable, UnsupportedCheckpoint, read_processor, read_processor_part
from proteus.families.family import EncoderInput, Family, MediaPlan, Modality, picture_bytes
from proteus.families.flops import linear
from proteus.families.language_model import LanguageModel, read_language_model
from proteus.families.vision_tower import VisionTower, read_vision_tower

DEFAULT_TOWER = VisionTower(patch_px=32, width=1152, feed_forward=3072, layers=12)
KINDS = ("Idefics3ImageProcessor", "SmolVLMImageProcessor")
PROCESSORS = tuple(kind + suffix for kind in KINDS for suffix in ("", "Fast", "Pil"))
MAX_SIDE_PX = 4096  # whatever the checkpoint says; MAX_IMAGE_SIZE of the image processors
MAX_TILES_A_SIDE = 6  # the vocabularies name tiles up to <row_6_col_6>
WHOLE_WRAPPERS = 3  # marker, tag of the whole picture, marker
TILE_WRAPPERS = 2  # marker, tag of row and column
Size = tuple[int, int]  # width and height, px


@dataclass(frozen=True, slots=True, kw_only=True)
class Idefics3(Family):
    name: ClassVar[str] = "Idefics3/SmolVLM"
    model_types: ClassVar[tuple[str, ...]] = ("idefics3", "smolvlm")
    modalities: ClassVar[tuple[Modality, ...]] = ("image",)

    language: LanguageModel
    tower: VisionTower
    longest_px: int
    tile_px: int
    shuffle: int  # pixel shuffle turns shuffle x shuffle patches into one visual token
    splits: bool
    blank_line_tokens: int  # "\n\n" in the checkpoint's tokenizer

    @classmethod
    def from_checkpoint(cls, folder: Path, config: ConfigTable) -> Self:
        """Read the folder; raises UnsupportedCheckpoint naming file, key and value."""
        pictures = read_processor_part(folder, "image_processor", "preprocessor_config.json")
        pictures.one_of("image_processor_type", PROCESSORS, PROCESSORS[0])
        pictures.one_of("do_resize", (True,), True)
        longest_px = _longest_edge(pictures, "size", 4 * 364)
        tile_px = _longest_edge(pictures, "max_image_size", 364)
        if min(longest_px, MAX_SIDE_PX) > MAX_TILES_A_SIDE * tile_px:
            raise pictures.wrong("size", longest_px, f"{MAX_TILES_A_SIDE} tiles of {tile_px} px")
        tower = read_vision_tower(config.table("vision_config"), DEFAULT_TOWER)
        shuffle, side = config.positive("scale_factor", 2), tile_px // tower.patch_px
        if side % shuffle:
            raise config.wrong("scale_factor", shuffle, f"it divides {side} patches a side")
        processor = read_processor(folder)
        if processor.positive("image_seq_len", 169) != (side // shuffle) ** 2:
            raise processor.wrong("image_seq_len", processor.get("image_seq_len", 169), "tokens of one tile")
        return cls(
            language=read_language_model(config.table("text_config"), "llama"),
            tower=tower,
            longest_px=longest_px,
            tile_px=tile_px,
            shuffle=shuffle,
            splits=pictures.flag("do_image_splitting", True),
            blank_line_tokens=_blank_line_tokens(folder),
        )

    def plan_image(self, width_px: int, height_px: int, *, images_in_request: int = 1) -> MediaPlan:
        """Tiles and the whole picture; raises PlanRefused for a picture without pixels."""
        decode_bytes = picture_bytes(width_px, height_px)
        cols, rows = self._grid(width_px, height_px)
        tiles, wrapper_tokens = 1, WHOLE_WRAPPERS
        if cols * rows > 1:
            tiles = cols * rows + 1
            wrapper_tokens += TILE_WRAPPERS * cols * rows + rows - 1 + self.blank_line_tokens
        patches = self.tower.patches(self.tile_px, self.tile_px)
        visual_tokens = tiles * patches // self.shuffle**2
        connector = linear(visual_tokens, self.tower.width * self.shuffle**2, self.language.hidden_size)
        return MediaPlan(
            modality="image",
            visual_tokens=visual_tokens,
            wrapper_tokens=wrapper_tokens,
            encoder_input=EncoderInput(kind="tiles", count=tiles, rows=self.tile_px, cols=self.tile_px),
            patches=tiles * patches,
            encoder_flops=tiles * self.tower.flops(patches) + connector,
            decode_bytes=decode_bytes,
            self_kv_bytes=self.language.self_kv_bytes(visual_tokens + wrapper_tokens),
        )

    def _grid(self, width_px: int, height_px: int) -> tuple[int, int]:
        """Columns and rows of tiles."""
        if not self.splits:
            return 1, 1
        width, height = _capped(_scaled((width_px, height_px), self.longest_px))
        ratio = width / height
        if width >= height:
            cols = math.ceil(width / self.tile_px)
            return cols, math.ceil(int(cols * self.tile_px / ratio) / self.tile_px)
        rows = math.ceil(height / self.tile_px)
        return math.ceil(int(rows * self.tile_px * ratio) / self.tile_px), rows


def _scaled(size: Size, longest_px: int) -> Size:
    """The longest side at `longest_px`, the other rounded down and then up to an even number."""
    width, height = size
    ratio = width / height
    if width >= height:
        short = int(longest_px / ratio)
        return longest_px, max(short + short % 2, 1)
    short = int(longest_px * ratio)
    return max(short + short % 2, 1), longest_px


def _capped(size: Size) -> Size:
    """The longest side at MAX_SIDE_PX at most."""
    width, height = size
    ratio = width / height
    if width >= height and width > MAX_SIDE_PX:
        width, height = MAX_SIDE_PX, int(MAX_SIDE_PX / ratio)
    elif height > width and height > MAX_SIDE_PX:
        width, height = int(MAX_SIDE_PX * ratio), MAX_SIDE_PX
    return max(width, 1), max(height, 1)


def _longest_edge(pictures: ConfigTable, key: str, default: int) -> int:
    """`{"longest_edge": px}`, the default when the key is absent; raises UnsupportedCheckpoint for another size."""
    if key not in pictures:
        return default
    size = pictures.table(key)
    return size.positive("longest_edge")


def _blank_line_tokens(folder: Path) -> int:
    """Tokens of "\\n\\n" in tokenizer.json; 1, as in every published checkpoint, when the folder has no such file."""
    path = folder / "tokenizer.json"
    if not path.exists():
        return 1
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise UnsupportedCheckpoint(f"{path} is not a tokenizer", fix="download the file again") from error
    return len(tokenizer.encode("\n\n", add_special_tokens=False).ids)
