"""Whisper as transformers counts it; Qwen2-Audio shares the case's media."""

from __future__ import annotations

import random as random_module
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.families.published_qwen import PUBLISHED
from tests.oracle.case import Audio, Counts, Hub, Judge, Medium, Refusal, around

RATE_HZ = 16_000
WINDOW_SAMPLES = 30 * RATE_HZ
HOP_SAMPLES = 160


@dataclass(frozen=True, slots=True)
class AudioCase(Hub):
    """Clips from one sample to two windows, around every hop at the start and at the end of the window.

    No sample at all is left out: extractors make silence of it, we refuse it.
    """

    full_pixels: int = 2 * WINDOW_SAMPLES

    def media(self, random: random_module.Random, count: int) -> Iterator[Medium]:
        hops = [HOP_SAMPLES * k for k in (*range(12), *range(2990, 3004), 100, 101, 6000)]
        marks = around(hops)
        for number in range(count):
            kind = number % 3
            if kind == 0:
                yield Audio(random.choice(marks))
            elif kind == 1:
                yield Audio(HOP_SAMPLES * random.randint(1, 3100) + random.choice((-1, 0, 1, 80)))
            else:
                yield Audio(round((2 * WINDOW_SAMPLES) ** random.random()))

    def flops_media(self) -> tuple[Medium, ...]:
        return Audio(1_000), Audio(WINDOW_SAMPLES), Audio(WINDOW_SAMPLES + 5)


@dataclass(frozen=True, slots=True)
class WhisperCase(AudioCase):
    def judge(self, folder: Path) -> Judge:
        """The extractor, its spectrogram left out, and the encoder's own count of rows."""
        return rows(folder, spectrogram=False)

    def full_judge(self, folder: Path) -> Judge:
        """The extractor as it is."""
        return rows(folder, spectrogram=True)

    def flops(self, folder: Path, medium: Medium) -> int:
        import torch
        from torch.utils.flop_counter import FlopCounterMode

        assert isinstance(medium, Audio)
        encoder = load_encoder(folder)
        features = load_extractor(folder)(silence(medium), sampling_rate=RATE_HZ, return_tensors="pt")
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            encoder(features["input_features"])
        return counter.get_total_flops()


def rows(folder: Path, *, spectrogram: bool) -> Judge:
    extractor, encoder = load_extractor(folder), load_encoder(folder)
    if not spectrogram:
        leave_out_spectrogram(extractor)

    def ask(medium: Medium) -> Counts | Refusal:
        assert isinstance(medium, Audio)
        features = extractor(silence(medium), sampling_rate=RATE_HZ)["input_features"]
        return Counts(0, 0, int(encoder._get_feat_extract_output_lengths(features.shape[-1])))

    return ask


def leave_out_spectrogram(extractor: Any) -> None:
    """Frames of zeros in place of the spectrogram: as many, a hundred times faster."""
    import numpy as np

    def blank(waveform: Any, device: str = "cpu") -> Any:
        return np.zeros((len(waveform), extractor.feature_size, waveform.shape[-1] // extractor.hop_length), np.float32)

    extractor._torch_extract_fbank_features = blank


def load_extractor(folder: Path) -> Any:
    from transformers import AutoFeatureExtractor

    return AutoFeatureExtractor.from_pretrained(folder)


def load_encoder(folder: Path) -> Any:
    from transformers import AutoConfig, AutoModel

    return AutoModel.from_config(AutoConfig.from_pretrained(folder), attn_implementation="eager").eval().encoder


def silence(medium: Audio) -> Any:
    import numpy as np

    return np.zeros(medium.num_samples, np.float32)


def tiny_files(name: str, encoder: Mapping[str, Any], **config: Any) -> dict[str, Mapping[str, Any]]:
    """A published checkpoint's files with other sizes in the encoder and in the config."""
    files: dict[str, Mapping[str, Any]] = dict(PUBLISHED[name])
    audio = {"audio_config": {**files["config.json"].get("audio_config", {}), **encoder}}
    parts = encoder if name.startswith("whisper") else audio
    return files | {"config.json": {**files["config.json"], **parts, **config}}


ENCODER = {"d_model": 24, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 36}
DECODER = {
    "num_hidden_layers": 2,
    "decoder_layers": 3,
    "decoder_attention_heads": 2,
    "decoder_ffn_dim": 36,
    "vocab_size": 400,
}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
CASES = (
    WhisperCase(name="whisper", family="whisper", files=tiny_files("whisper-large-v3", ENCODER, **DECODER, **TOKENS)),
)
