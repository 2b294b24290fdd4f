"""LLaVA-NeXT-Video: pictures as LLaVA-NeXT; each frame of a video is one tile, pooled before the connector.

Zhang et al. 2024, "LLaVA-NeXT: A strong zero-shot video understanding model"; transformers' LlavaNextVideoProcessor,
which counts a quarter of the patches for a frame whatever the pooling: checkpoints that pool otherwise are refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from proteus.families.checkpoint import ConfigTable
from proteus.families.family import ASSUMED_FRAMES_PER_S, EncoderInput, MediaPlan, Modality, video_bytes
from proteus.families.llava_encoder import check_tile_px, read_video_processor
from proteus.families.llava_next import SIDE_PX, LlavaNext


@dataclass(frozen=True, slots=True, kw_only=True)
class LlavaNextVideo(LlavaNext):
    name: ClassVar[str] = "LLaVA-NeXT-Video"
    model_types: ClassVar[tuple[str, ...]] = ("llava_next_video",)
    modalities: ClassVar[tuple[Modality, ...]] = ("image", "video")

    @classmethod
    def from_checkpoint(cls, folder: Path, config: ConfigTable) -> Self:
        """Read the folder; raises UnsupportedCheckpoint."""
        family = LlavaNext.from_checkpoint(folder, config)
        encoder = family.encoder
        check_tile_px(read_video_processor(folder), encoder.tile_px, size_px=SIDE_PX, crop_px=SIDE_PX)
        config.one_of("spatial_pool_mode", ("average", "max"), "average")
        stride = config.positive("spatial_pool_stride", 2)
        if (encoder.grid // stride) ** 2 != encoder.tile_patches // 4:
            raise config.wrong("spatial_pool_stride", stride, f"a quarter of {encoder.tile_patches} patches a frame")
        return cls(encoder=encoder, pinpoints=family.pinpoints, language=family.language)

    def plan_video(
        self, num_frames: int, width_px: int, height_px: int, *, frames_per_s: float = ASSUMED_FRAMES_PER_S
    ) -> MediaPlan:
        """A quarter of the patches for each frame, whatever its size."""
        decode_bytes = video_bytes(num_frames, width_px, height_px)
        tokens = self.encoder.tile_patches // 4 * num_frames
        return MediaPlan(
            modality="video",
            visual_tokens=tokens,
            wrapper_tokens=0,
            encoder_input=EncoderInput(
                kind="tiles", count=num_frames, rows=self.encoder.tile_px, cols=self.encoder.tile_px
            ),
            patches=num_frames * self.encoder.tile_patches,
            encoder_flops=self.encoder.tower_flops(num_frames) + self.encoder.connector_flops(tokens),
            decode_bytes=decode_bytes,
            self_kv_bytes=self.language.self_kv_bytes(tokens),
        )
