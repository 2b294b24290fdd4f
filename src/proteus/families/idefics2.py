"""Idefics2 (arXiv 2405.02246 §3): the picture in its own ratio, sides within two bounds, resampled to a fixed number of
latents; with splitting, four quarters come before it. Rules of transformers' Idefics2Processor and
Idefics2ImageProcessor, which pads the pictures of a request to the largest: counted here for one picture.

One marker stands between neighbouring pictures, so pictures that touch in the prompt take one wrapper token less than
their plans. A picture of one pixel's width or height has empty quarters: transformers raises, the plan refuses.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from proteus.families.checkpoint import ConfigTable, read_processor, read_processor_part
from proteus.families.family import EncoderInput, Family, MediaPlan, Modality, PlanRefused, picture_bytes
from proteus.families.flops import attention, linear
from proteus.families.language_model import LanguageModel, read_language_model
from proteus.families.vision_tower import VisionTower, read_vision_tower

DEFAULT_TOWER = VisionTower(patch_px=32, width=768, feed_forward=3072, layers=12)
DEFAULT_TEXT_FEED_FORWARD = 14336
PROCESSORS = ("Idefics2ImageProcessor", "Idefics2ImageProcessorFast", "Idefics2ImageProcessorPil")
Size = tuple[int, int]  # width and height, px


@dataclass(frozen=True, slots=True, kw_only=True)
class Resampler:
    """The perceiver between encoder and language model; arXiv 2405.02246 §3.2."""

    latents: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int

    def flops(self, rows: int, width: int) -> int:
        """Operations to resample `rows` of `width`: the latents look at the rows and at themselves."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        seen = rows + self.latents
        projections = linear(self.latents, width, queries) + 2 * linear(seen, width, keys)
        projections += linear(self.latents, queries, width)
        feed_forward = 3 * linear(self.latents, width, 4 * width)
        return self.layers * (projections + attention(self.latents, seen, queries) + feed_forward)


@dataclass(frozen=True, slots=True, kw_only=True)
class Idefics2(Family):
    name: ClassVar[str] = "Idefics2"
    model_types: ClassVar[tuple[str, ...]] = ("idefics2",)
    modalities: ClassVar[tuple[Modality, ...]] = ("image",)

    language: LanguageModel
    tower: VisionTower
    resampler: Resampler
    text_feed_forward: int  # width inside the connector's gated layer
    shortest_px: int
    longest_px: int
    splits: bool

    @classmethod
    def from_checkpoint(cls, folder: Path, config: ConfigTable) -> Self:
        """Read the folder; raises UnsupportedCheckpoint naming file, key and value."""
        text, perceiver = config.table("text_config"), config.table("perceiver_config")
        pictures = read_processor_part(folder, "image_processor", "preprocessor_config.json")
        pictures.one_of("image_processor_type", PROCESSORS, PROCESSORS[0])
        pictures.one_of("do_resize", (True,), True)
        pictures.one_of("do_pad", (True,), True)
        size = pictures.table("size")
        latents = perceiver.positive("resampler_n_latents", 64)
        processor = read_processor(folder)
        if processor.positive("image_seq_len", 64) != latents:
            raise processor.wrong(
                "image_seq_len", processor.get("image_seq_len", 64), f"resampler_n_latents = {latents}"
            )
        return cls(
            language=read_language_model(text, "mistral"),
            tower=read_vision_tower(config.table("vision_config"), DEFAULT_TOWER),
            resampler=Resampler(
                latents=latents,
                layers=perceiver.positive("resampler_depth", 3),
                heads=perceiver.positive("resampler_n_heads", 16),
                kv_heads=perceiver.positive("num_key_value_heads", 4),
                head_dim=perceiver.positive("resampler_head_dim", 96),
            ),
            text_feed_forward=text.positive("intermediate_size", DEFAULT_TEXT_FEED_FORWARD),
            shortest_px=size.positive("shortest_edge", 378 if not size.values else None),
            longest_px=size.positive("longest_edge", 980 if not size.values else None),
            splits=pictures.flag("do_image_splitting", False),
        )

    def plan_image(self, width_px: int, height_px: int, *, images_in_request: int = 1) -> MediaPlan:
        """All views at the size of the largest; raises PlanRefused when a side is too short to split."""
        decode_bytes = picture_bytes(width_px, height_px)
        views = [self._resized(view) for view in self._views(width_px, height_px)]
        cols_px, rows_px = max(width for width, _ in views), max(height for _, height in views)
        patches = self.tower.patches(rows_px, cols_px)
        visual_tokens, wrapper_tokens = len(views) * self.resampler.latents, len(views) + 1
        hidden_size = self.language.hidden_size
        connector = 2 * linear(patches, self.tower.width, self.text_feed_forward)
        connector += linear(patches, self.text_feed_forward, hidden_size)
        connector += self.resampler.flops(patches, hidden_size)
        return MediaPlan(
            modality="image",
            visual_tokens=visual_tokens,
            wrapper_tokens=wrapper_tokens,
            encoder_input=EncoderInput(
                kind="tiles", count=len(views), rows=rows_px, cols=cols_px, patch_px=self.tower.patch_px
            ),
            patches=len(views) * patches,
            encoder_flops=len(views) * (self.tower.flops(patches) + connector),
            decode_bytes=decode_bytes,
            self_kv_bytes=self.language.self_kv_bytes(visual_tokens + wrapper_tokens),
        )

    def _views(self, width_px: int, height_px: int) -> list[Size]:
        """Four quarters, the odd pixel in the later ones, and the whole; or the whole alone."""
        whole = (width_px, height_px)
        if not self.splits:
            return [whole]
        if min(whole) < 2:
            raise PlanRefused(
                f"picture of {width_px}x{height_px} px cannot be split into quarters",
                limit="sides of 2 px or more",
                fix="send a larger picture",
            )
        left, top = width_px // 2, height_px // 2
        return [(w, h) for h in (top, height_px - top) for w in (left, width_px - left)] + [whole]

    def _resized(self, size: Size) -> Size:
        """Longest side cut to its bound, the other rounded down, then each side raised to the lower bound."""
        width, height = size
        ratio = width / height
        if width >= height and width > self.longest_px:
            width, height = self.longest_px, int(self.longest_px / ratio)
        elif height > width and height > self.longest_px:
            width, height = int(self.longest_px * ratio), self.longest_px
        return max(width, self.shortest_px), max(height, self.shortest_px)
