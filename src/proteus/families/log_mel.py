"""Audio encoders after Whisper: a window of fixed length as log-mel frames, two convolutions, layers over all of it.

Rule: WhisperFeatureExtractor and WhisperEncoder; arXiv 2212.04356 §2.2. Shorter audio is filled with silence, longer is
cut, and the encoder works on the whole window either way, so its operations do not depend on the audio.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from proteus.families import flops
from proteus.families.checkpoint import ConfigTable, read_processor_part
from proteus.families.family import EncoderInput, PlanRefused

SAMPLE_BYTES = 4
KERNEL = 3  # frames that each convolution sees
STRIDE = 2  # of the second convolution


@dataclass(frozen=True, slots=True, kw_only=True)
class MelWindow:
    """What the feature extractor makes of audio."""

    sample_rate_hz: int
    hop_samples: int  # between two mel frames
    mel_bins: int
    samples: int  # of the window

    @property
    def frames(self) -> int:
        return self.samples // self.hop_samples

    @property
    def encoder_input(self) -> EncoderInput:
        return EncoderInput(kind="mel", count=1, rows=self.mel_bins, cols=self.frames)

    def heard_frames(self, num_samples: int) -> int:
        """Mel frames that start within the audio, not in the silence behind it."""
        return -(-min(num_samples, self.samples) // self.hop_samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioTower:
    positions: int  # of the window, after the second convolution
    width: int
    feed_forward: int
    layers: int

    def flops(self, window: MelWindow) -> int:
        """Operations on one window: convolutions and layers."""
        return (
            flops.linear(window.frames, KERNEL * window.mel_bins, self.width)
            + flops.linear(self.positions, KERNEL * self.width, self.width)
            + self.layers * flops.layer(self.positions, self.positions, self.width, self.feed_forward)
        )


def audio_bytes(num_samples: int) -> int:
    """Bytes of the audio as 32-bit samples; raises PlanRefused when there are none."""
    if num_samples < 1:
        raise PlanRefused(f"audio of {num_samples} samples", limit="1 sample at least", fix="send audio")
    return num_samples * SAMPLE_BYTES


def read_tower(table: ConfigTable, defaults: AudioTower) -> AudioTower:
    """The encoder's sizes; raises UnsupportedCheckpoint, also where the second name for its layers says otherwise."""
    layers = table.positive("encoder_layers", defaults.layers)
    if (also := table.positive("num_hidden_layers", layers)) != layers:
        raise table.wrong("num_hidden_layers", also, f"encoder_layers = {layers}")
    return AudioTower(
        positions=table.positive("max_source_positions", defaults.positions),
        width=table.positive("d_model", defaults.width),
        feed_forward=table.positive("encoder_ffn_dim", defaults.feed_forward),
        layers=layers,
    )


def read_window(folder: Path, *, mel_bins: int, positions: int) -> MelWindow:
    """The feature extractor's settings, once they are what the encoder takes. Raises UnsupportedCheckpoint."""
    table = read_processor_part(folder, "feature_extractor", "preprocessor_config.json")
    table.one_of("feature_extractor_type", ("WhisperFeatureExtractor",), "WhisperFeatureExtractor")
    rate_hz = table.positive("sampling_rate", 16_000)
    seconds = table.positive("chunk_length", 30)
    window = MelWindow(
        sample_rate_hz=rate_hz,
        hop_samples=table.positive("hop_length", 160),
        mel_bins=table.positive("feature_size", 80),
        samples=seconds * rate_hz,
    )
    if window.mel_bins != mel_bins:
        raise table.wrong("feature_size", window.mel_bins, f"the encoder's num_mel_bins = {mel_bins}")
    if window.samples != STRIDE * positions * window.hop_samples:
        raise table.wrong("chunk_length", seconds, f"the encoder's max_source_positions = {positions}")
    return window
