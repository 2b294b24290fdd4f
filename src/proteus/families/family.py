"""What a family states about one medium, from sizes alone: the plan that the rest of Proteus admits, prices and checks.

One family is one module: a subclass here, a row in `families/table.py`, an oracle case in tests/oracle/families/.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, Self

from proteus.errors import InvalidRequest
from proteus.families.checkpoint import ConfigTable
from proteus.families.language_model import LanguageModel

Modality = Literal["image", "video", "audio"]
RGB_BYTES = 3
ASSUMED_FRAMES_PER_S = 24.0  # by transformers' processors, of frames that come without a rate


class PlanRefused(InvalidRequest):
    """The family's own processor would not take a medium of this size; the text says why."""

    code = "media_not_supported"


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderInput:
    """Shape of what the encoder is given. `tiles`: `count` pictures of one size; `grid`: `count` patch grids of
    (rows, cols), one of each (pair of) frame(s); `mel`: `count` windows of (mel bins, frames).
    """

    kind: Literal["tiles", "grid", "mel"]
    count: int
    rows: int  # px (tiles), patches (grid), mel bins (mel)
    cols: int  # px (tiles), patches (grid), frames (mel)
    patch_px: int = 0  # of tiles that may have any size, the rest masked; 0 for tiles of the family's one size


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaPlan:
    """Exact cost of one medium, before a pixel is decoded."""

    modality: Modality
    visual_tokens: int  # positions of the prompt fed by embeddings
    wrapper_tokens: int  # text tokens the processor puts around and between them: row, column, break, start, end
    encoder_input: EncoderInput
    patches: int  # what the encoder embeds, padding patches included
    encoder_flops: int  # vision or audio encoder and connector; one multiply-add is two
    decode_bytes: int  # 8-bit RGB of every frame used at its own size, or 32-bit mono samples
    self_kv_bytes: int  # visual and wrapper tokens, 16-bit values
    cross_kv_bytes: int = 0  # media memory of the cross-attention layers, 16-bit values
    cross_rows: int = 0  # rows of that memory

    @property
    def prompt_tokens(self) -> int:
        """Positions of the prompt that this medium takes."""
        return self.visual_tokens + self.wrapper_tokens


class Family(ABC):
    """The rules of one checkpoint. Sizes are (width, height) in upright pixels."""

    name: ClassVar[str]  # as people say it: "Qwen2-VL"
    model_types: ClassVar[tuple[str, ...]]  # of config.json
    modalities: ClassVar[tuple[Modality, ...]] = ("image",)

    language: LanguageModel

    @classmethod
    @abstractmethod
    def from_checkpoint(cls, folder: Path, config: ConfigTable) -> Self:
        """Read the folder whose config.json is `config`; raises UnsupportedCheckpoint."""

    def plan_image(self, width_px: int, height_px: int, *, images_in_request: int = 1) -> MediaPlan:
        """Plan one picture; raises PlanRefused where the family's processor raises."""
        raise self.refuses("image")

    def plan_video(
        self, num_frames: int, width_px: int, height_px: int, *, frames_per_s: float = ASSUMED_FRAMES_PER_S
    ) -> MediaPlan:
        """Plan a clip of `num_frames` frames already sampled, `frames_per_s` of them in a second.

        Raises PlanRefused where the processor raises.
        """
        raise self.refuses("video")

    def plan_audio(self, num_samples: int) -> MediaPlan:
        """Plan mono audio of `num_samples` at `sample_rate_hz`; raises PlanRefused where the processor raises."""
        raise self.refuses("audio")

    @property
    def sample_rate_hz(self) -> int:
        """Of the audio that `plan_audio` counts."""
        raise self.refuses("audio")

    def refuses(self, modality: Modality) -> PlanRefused:
        """The error for a kind of medium that the family does not read."""
        return PlanRefused(
            f"{self.name} reads no {modality}", limit=f"it reads {', '.join(self.modalities)}", fix="send one of these"
        )


def picture_bytes(width_px: int, height_px: int) -> int:
    """Bytes of a picture as 8-bit RGB; raises PlanRefused when a side is below 1 px."""
    if min(width_px, height_px) < 1:
        raise PlanRefused(f"picture of {width_px}x{height_px} px", limit="sides of 1 px or more", fix="send a picture")
    return RGB_BYTES * width_px * height_px


def video_bytes(num_frames: int, width_px: int, height_px: int) -> int:
    """Bytes of all frames as 8-bit RGB; raises PlanRefused for a clip without frames or pixels."""
    if num_frames < 1:
        raise PlanRefused(f"video of {num_frames} frames", limit="1 frame or more", fix="send a video with pictures")
    return num_frames * picture_bytes(width_px, height_px)
