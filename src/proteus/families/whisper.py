"""Whisper: the decoder reads audio through cross-attention alone, so audio takes no position of the prompt.

A window always becomes `max_source_positions` rows of encoder output, held as keys and values by every decoder layer;
`visual_tokens` is 0. Rule and sources in `log_mel`. Audio beyond the window is not heard: the processor cuts it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from proteus.families.checkpoint import ConfigTable
from proteus.families.family import Family, MediaPlan
from proteus.families.language_model import LanguageModel
from proteus.families.log_mel import AudioTower, MelWindow, audio_bytes, read_tower, read_window

DEFAULT_TOWER = AudioTower(positions=1500, width=384, feed_forward=1536, layers=4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Whisper(Family):
    """Checkpoints of `WhisperForConditionalGeneration`."""

    name = "Whisper"
    model_types = ("whisper",)
    modalities = ("audio",)

    language: LanguageModel
    tower: AudioTower
    window: MelWindow

    @classmethod
    def from_checkpoint(cls, folder: Path, config: ConfigTable) -> Self:
        """Read the folder; raises UnsupportedCheckpoint."""
        tower = read_tower(config, DEFAULT_TOWER)
        return cls(
            language=read_decoder(config, tower.width),
            tower=tower,
            window=read_window(folder, mel_bins=config.positive("num_mel_bins", 80), positions=tower.positions),
        )

    @property
    def sample_rate_hz(self) -> int:
        return self.window.sample_rate_hz

    def plan_audio(self, num_samples: int) -> MediaPlan:
        """Plan one window, whatever of it the audio fills; raises PlanRefused without samples."""
        return MediaPlan(
            modality="audio",
            visual_tokens=0,
            wrapper_tokens=0,
            encoder_input=self.window.encoder_input,
            patches=self.tower.positions,
            encoder_flops=self.tower.flops(self.window),
            decode_bytes=audio_bytes(num_samples),
            self_kv_bytes=0,
            cross_kv_bytes=self.language.cross_kv_bytes(self.tower.positions),
            cross_rows=self.tower.positions,
        )


def read_decoder(config: ConfigTable, width: int) -> LanguageModel:
    """The decoder: each layer attends to the text and to the audio. Raises UnsupportedCheckpoint."""
    layers, heads = config.positive("decoder_layers", 4), config.positive("decoder_attention_heads", 6)
    return LanguageModel(
        layers=layers,
        kv_heads=heads,
        head_dim=width // heads,
        hidden_size=width,
        context_tokens=config.positive("max_target_positions", 448),
        cross_layers=layers,
    )
