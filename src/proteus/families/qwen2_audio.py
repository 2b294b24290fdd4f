"""Qwen2-Audio: Whisper's encoder, its output halved; only the part that was heard reaches the prompt.

Rule: Qwen2AudioProcessor; arXiv 2407.10759 §2. Below three mel frames (20 ms) the processor makes no placeholder at
all, without an error, and the model would answer about audio that it never got: such audio is refused. Counted is what
the processor makes of one `<|AUDIO|>`; `<|audio_bos|>` and `<|audio_eos|>` belong to the chat template. The connector
works on the whole window.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from proteus.families import flops
from proteus.families.checkpoint import ConfigTable
from proteus.families.family import Family, MediaPlan, PlanRefused
from proteus.families.language_model import LanguageModel, read_language_model
from proteus.families.log_mel import AudioTower, MelWindow, audio_bytes, read_tower, read_window

DEFAULT_TOWER = AudioTower(positions=1500, width=1280, feed_forward=5120, layers=32)
POOL = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen2Audio(Family):
    """Checkpoints of `Qwen2AudioForConditionalGeneration`."""

    name = "Qwen2-Audio"
    model_types = ("qwen2_audio",)
    modalities = ("audio",)

    language: LanguageModel
    tower: AudioTower
    window: MelWindow

    @classmethod
    def from_checkpoint(cls, folder: Path, config: ConfigTable) -> Self:
        """Read the folder; raises UnsupportedCheckpoint."""
        audio = config.table("audio_config")
        tower = read_tower(audio, DEFAULT_TOWER)
        return cls(
            language=read_language_model(config.table("text_config"), "qwen2"),
            tower=tower,
            window=read_window(folder, mel_bins=audio.positive("num_mel_bins", 128), positions=tower.positions),
        )

    @property
    def sample_rate_hz(self) -> int:
        return self.window.sample_rate_hz

    def plan_audio(self, num_samples: int) -> MediaPlan:
        """Plan one clip, of which a window is heard; raises PlanRefused when it is too short for a visual token."""
        decode_bytes = audio_bytes(num_samples)
        visual_tokens = halved(self.window.heard_frames(num_samples))
        if visual_tokens < 1:
            raise PlanRefused(
                f"audio of {num_samples} samples is too short",
                limit=f"{2 * self.window.hop_samples + 1} samples at least",
                fix="send longer audio",
            )
        pooled = self.tower.positions // POOL
        return MediaPlan(
            modality="audio",
            visual_tokens=visual_tokens,
            wrapper_tokens=0,
            encoder_input=self.window.encoder_input,
            patches=self.tower.positions,
            encoder_flops=self.tower.flops(self.window)
            + flops.linear(pooled, self.tower.width, self.language.hidden_size),
            decode_bytes=decode_bytes,
            self_kv_bytes=self.language.self_kv_bytes(visual_tokens),
        )


def halved(mel_frames: int) -> int:
    """Visual tokens of the mel frames heard: halved by the second convolution (rounding up), then by the pooling
    (rounding down).
    """
    positions = (mel_frames - 1) // 2 + 1
    return (positions - POOL) // POOL + 1
