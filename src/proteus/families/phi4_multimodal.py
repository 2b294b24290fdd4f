"""Phi-4-multimodal (arXiv 2503.01743 §2): pictures as a whole and as a grid of tiles, cut to the part that holds
pixels; audio as a log-mel spectrogram shortened eight times. Rules of transformers' Phi4MultimodalImageProcessor and
Phi4MultimodalFeatureExtractor.

The processor states its token counts for tiles of 448 px and patches of 14 px only, so other sizes are refused at load.
Only the vision layers up to the one whose output is used are counted: transformers runs those after it, and a pooling
head, for nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from proteus.families.checkpoint import ConfigTable, read_processor_part
from proteus.families.conformer import Conformer, read_conformer
from proteus.families.family import EncoderInput, Family, MediaPlan, Modality, PlanRefused, picture_bytes
from proteus.families.flops import linear
from proteus.families.language_model import LanguageModel, read_language_model
from proteus.families.tile_grid import MAX_TILES, Grid, nearest_grid
from proteus.families.vision_tower import VisionTower, read_square_px, read_vision_tower

DEFAULT_TOWER = VisionTower(patch_px=14, width=1152, feed_forward=4304, layers=27)
PICTURE_PROCESSORS = tuple(f"Phi4MultimodalImageProcessor{suffix}" for suffix in ("", "Fast", "Pil"))
TILE_PX, PATCH_PX = 448, 14
TILE_PATCHES = TILE_PX // PATCH_PX  # a side
WHOLE_ROWS = TILE_PATCHES // 2  # of tokens: 2 x 2 patches are averaged
SHORTEST_PX = 10  # of the scaled picture
SAMPLE_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Phi4Multimodal(Family):
    name: ClassVar[str] = "Phi-4-multimodal"
    model_types: ClassVar[tuple[str, ...]] = ("phi4_multimodal",)
    modalities: ClassVar[tuple[Modality, ...]] = ("image", "audio")

    language: LanguageModel
    tower: VisionTower
    used_layers: int  # of the tower
    max_tiles: int
    conformer: Conformer
    audio_rate_hz: int
    window: int  # samples of one mel frame
    hop: int  # samples between frames

    @classmethod
    def from_checkpoint(cls, folder: Path, config: ConfigTable) -> Self:
        """Read the folder; raises UnsupportedCheckpoint naming file, key and value."""
        vision = config.table("vision_config")
        vision.one_of("crop_size", (TILE_PX,), TILE_PX)
        vision.one_of("image_size", (TILE_PX, [TILE_PX, TILE_PX]), TILE_PX)
        pictures = read_processor_part(folder, "image_processor", "preprocessor_config.json")
        pictures.one_of("image_processor_type", PICTURE_PROCESSORS, PICTURE_PROCESSORS[0])
        pictures.one_of("patch_size", (PATCH_PX,), PATCH_PX)
        if (tile_px := read_square_px(pictures, "size", TILE_PX)) != TILE_PX:
            raise pictures.wrong("size", tile_px, f"{TILE_PX} px")
        tower = read_vision_tower(vision, DEFAULT_TOWER)
        vision.one_of("patch_size", (PATCH_PX, [PATCH_PX, PATCH_PX]), PATCH_PX)
        feature_layer = vision.get("feature_layer", -2)
        if not isinstance(feature_layer, int) or not -tower.layers <= feature_layer < 0:
            raise vision.wrong("feature_layer", feature_layer, "a layer counted from the last, -1")
        sound = read_processor_part(folder, "audio_processor", "preprocessor_config.json")
        conformer = read_conformer(config.table("audio_config"))
        sound.one_of("feature_extractor_type", ("Phi4MultimodalFeatureExtractor",), "Phi4MultimodalFeatureExtractor")
        sound.one_of("audio_compression_rate", (conformer.shortening,), 8)
        sound.one_of("audio_downsample_rate", (1,), 1)
        sound.one_of("audio_feat_stride", (1,), 1)
        sound.one_of("feature_size", (conformer.mel_bins,), 80)
        return cls(
            language=read_language_model(config, "phi4_multimodal"),
            tower=tower,
            used_layers=tower.layers + 1 + feature_layer,
            max_tiles=pictures.positive("dynamic_hd", 36, most=MAX_TILES),
            conformer=conformer,
            audio_rate_hz=sound.positive("sampling_rate", 16_000),
            window=sound.positive("win_length", 400),
            hop=sound.positive("hop_length", 160),
        )

    @property
    def sample_rate_hz(self) -> int:
        """Of the audio that `plan_audio` counts."""
        return self.audio_rate_hz

    def plan_image(self, width_px: int, height_px: int, *, images_in_request: int = 1) -> MediaPlan:
        """Whole picture and grid; raises PlanRefused when the scaled picture is thinner than SHORTEST_PX."""
        decode_bytes = picture_bytes(width_px, height_px)
        cols, rows = grid = self._grid(width_px, height_px)
        held_cols, held_rows = _held_tokens(width_px, height_px, grid)
        # after each row of tokens stands a separator, and one between the grid and the whole
        visual_tokens = held_rows * (held_cols + 1) + 1 + WHOLE_ROWS * (WHOLE_ROWS + 1)
        tiles, patches = 1 + cols * rows, TILE_PATCHES**2
        return MediaPlan(
            modality="image",
            visual_tokens=visual_tokens,
            wrapper_tokens=0,
            encoder_input=EncoderInput(kind="tiles", count=tiles, rows=TILE_PX, cols=TILE_PX),
            patches=tiles * patches,
            encoder_flops=tiles * self.tower.flops(patches, layers=self.used_layers)
            + self._connector_flops(visual_tokens, self.tower.width),
            decode_bytes=decode_bytes,
            self_kv_bytes=self.language.self_kv_bytes(visual_tokens),
        )

    def plan_audio(self, num_samples: int) -> MediaPlan:
        """Mono samples at `sample_rate_hz`; raises PlanRefused when they do not fill one window."""
        if num_samples < self.window:
            raise PlanRefused(
                f"audio of {num_samples} samples",
                limit=f"one window of {self.window} samples",
                fix="send longer audio",
            )
        frames = (num_samples - self.window) // self.hop + 1
        tokens = self.conformer.rows(frames)
        return MediaPlan(
            modality="audio",
            visual_tokens=tokens,
            wrapper_tokens=0,
            encoder_input=EncoderInput(kind="mel", count=1, rows=self.conformer.mel_bins, cols=frames),
            patches=self.conformer.padded_rows(frames),
            encoder_flops=self.conformer.flops(frames) + self._connector_flops(tokens, self.conformer.width),
            decode_bytes=SAMPLE_BYTES * num_samples,
            self_kv_bytes=self.language.self_kv_bytes(tokens),
        )

    def _connector_flops(self, rows: int, width: int) -> int:
        hidden_size = self.language.hidden_size
        return linear(rows, width, hidden_size) + linear(rows, hidden_size, hidden_size)

    def _grid(self, width_px: int, height_px: int) -> Grid:
        """As many tiles as cover the picture, or the grid of at most `max_tiles` nearest to its ratio."""
        cols, rows = math.ceil(width_px / TILE_PX), math.ceil(height_px / TILE_PX)
        if cols * rows <= self.max_tiles:
            return cols, rows
        return nearest_grid(width_px, height_px, TILE_PX, min_tiles=1, max_tiles=self.max_tiles)


def _held_tokens(width_px: int, height_px: int, grid: Grid) -> tuple[int, int]:
    """Columns and rows of tokens that hold part of the picture, scaled to fill the grid in one direction."""
    grid_width, grid_height = grid[0] * TILE_PX, grid[1] * TILE_PX
    across, down = grid_width / width_px, grid_height / height_px
    if across < down:
        width, height = grid_width, int(height_px * across)
    else:
        width, height = int(width_px * down), grid_height
    if min(width, height) < SHORTEST_PX:
        raise PlanRefused(
            f"picture of {width_px}x{height_px} px is too thin: {width}x{height} px when scaled",
            limit=f"sides of {SHORTEST_PX} px or more when scaled",
            fix="send a picture with a smaller aspect ratio",
        )
    return _held(width, grid[0]), _held(height, grid[1])


def _held(side_px: int, tiles: int) -> int:
    """Tokens along a side of `tiles` tiles whose first `side_px` are the picture: whole patches of padding are cut."""
    padding_px = tiles * TILE_PX - side_px
    return math.ceil((tiles * TILE_PATCHES - padding_px // PATCH_PX) / 2)
