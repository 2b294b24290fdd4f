"""LLaVA-1.5: one CLIP view per picture, so the number of visual tokens never depends on the picture.

Liu et al. 2023 (arXiv 2310.03744 §3.1). Reads a checkpoint folder in the hub's layout; refuses at load what the serving
path would get wrong. Defaults are those of transformers' CLIPVisionConfig and CLIPImageProcessor.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from proteus.families.checkpoint import ConfigTable, UnsupportedCheckpoint, read_config
from proteus.families.family import EncoderInput, Family, MediaPlan, picture_bytes
from proteus.families.language_model import LanguageModel, read_language_model
from proteus.families.llava_encoder import (
    LlavaEncoder,
    check_patch_count,
    read_image_processor,
    read_llava_encoder,
)

__all__ = ["LlavaFamily", "ResizeRule", "UnsupportedCheckpoint"]

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
BICUBIC = 3
PROCESSORS = ("CLIPImageProcessor", "CLIPImageProcessorFast", "CLIPImageProcessorPil", "CLIPFeatureExtractor")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeRule:
    """Steps of the image processor, in order; None leaves a step out."""

    shortest_edge_px: int | None  # keep the aspect ratio, or …
    size_px: tuple[int, int] | None  # … (height, width) exactly
    resample: int  # Pillow's filter number
    crop_px: tuple[int, int] | None  # (height, width), centred, zero-padded where the picture is smaller
    rescale_factor: float | None
    mean: tuple[float, float, float] | None
    std: tuple[float, float, float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LlavaFamily(Family):
    """Everything the serving path must know about one LLaVA checkpoint."""

    name: ClassVar[str] = "LLaVA-1.5"
    model_types: ClassVar[tuple[str, ...]] = ("llava",)

    image_size_px: int
    patch_px: int
    visual_tokens: int  # of one picture, whatever its size
    feature_width: int  # of the encoder's output: hidden size x selected layers
    image_token_id: int
    resize: ResizeRule
    encoder: LlavaEncoder
    language: LanguageModel

    @classmethod
    def from_checkpoint(cls, folder: Path, config: ConfigTable | None = None) -> Self:
        """Read the folder; raises UnsupportedCheckpoint naming file, key, value and what would do."""
        config = config or read_config(folder)
        config.one_of("model_type", cls.model_types)
        language = read_language_model(config.table("text_config"), "llama")
        encoder = read_llava_encoder(config, language.hidden_size)
        resize = _resize_rule(read_image_processor(folder), encoder.tile_px)
        check_patch_count(folder, encoder)
        return cls(
            image_size_px=encoder.tile_px,
            patch_px=encoder.tower.patch_px,
            visual_tokens=encoder.tile_tokens,
            feature_width=encoder.feature_width,
            image_token_id=config.positive("image_token_id", config.positive("image_token_index", 32000)),
            resize=resize,
            encoder=encoder,
            language=language,
        )

    def plan_image(self, width_px: int, height_px: int, *, images_in_request: int = 1) -> MediaPlan:
        """The same for pictures of any size."""
        decode_bytes = picture_bytes(width_px, height_px)
        return MediaPlan(
            modality="image",
            visual_tokens=self.visual_tokens,
            wrapper_tokens=0,
            encoder_input=EncoderInput(kind="tiles", count=1, rows=self.image_size_px, cols=self.image_size_px),
            patches=self.encoder.tile_patches,
            encoder_flops=self.encoder.flops(1),
            decode_bytes=decode_bytes,
            self_kv_bytes=self.language.self_kv_bytes(self.visual_tokens),
        )


def _resize_rule(settings: ConfigTable, image_size_px: int) -> ResizeRule:
    settings.one_of("image_processor_type", PROCESSORS, PROCESSORS[0])
    settings.one_of("do_pad", (False,), False)
    shortest_edge_px, size_px = _size(settings) if settings.flag("do_resize", True) else (None, None)
    normalises = settings.flag("do_normalize", True)
    rule = ResizeRule(
        shortest_edge_px=shortest_edge_px,
        size_px=size_px,
        resample=int(settings.number("resample", BICUBIC)),
        crop_px=settings.sides_px("crop_size", 224) if settings.flag("do_center_crop", True) else None,
        rescale_factor=settings.number("rescale_factor", 1 / 255) if settings.flag("do_rescale", True) else None,
        mean=_triple(settings, "image_mean", CLIP_MEAN) if normalises else None,
        std=_triple(settings, "image_std", CLIP_STD) if normalises else None,
    )
    if (rule.crop_px or rule.size_px) != (image_size_px, image_size_px):
        raise UnsupportedCheckpoint(
            f"{settings.name} makes pictures of {rule.crop_px or rule.size_px or 'any size'} px",
            limit=f"vision_config.image_size = {image_size_px}",
            fix="use a fixed square size or a centre crop of the encoder's size",
        )
    return rule


def _size(settings: ConfigTable) -> tuple[int | None, tuple[int, int] | None]:
    """(shortest edge, None) or (None, (height, width)); a plain number is a shortest edge, as in older checkpoints."""
    size = settings.get("size", {"shortest_edge": 224})
    if isinstance(size, int):
        return settings.positive("size"), None
    named = {key: side for key, side in size.items() if side is not None} if isinstance(size, dict) else {}
    if set(named) == {"shortest_edge"}:
        return settings.table("size").positive("shortest_edge", 224), None
    if set(named) == {"height", "width"}:
        return None, settings.sides_px("size")
    raise settings.wrong("size", size, "shortest_edge, or height and width")


def _triple(settings: ConfigTable, key: str, default: tuple[float, float, float]) -> tuple[float, float, float]:
    values = settings.get(key, list(default))
    if not isinstance(values, list) or len(values) != 3 or not all(isinstance(value, int | float) for value in values):
        raise settings.wrong(key, values, "three numbers")
    red, green, blue = (float(value) for value in values)
    return red, green, blue
