from __future__ import annotations

from pathlib import Path

import pytest

from proteus.families.checkpoint import UnsupportedCheckpoint
from proteus.families.family import EncoderInput, MediaPlan, PlanRefused
from tests.families.qwen_folders import family_of

NAME = "whisper-large-v3"
CONFIG, FEATURES = "config.json: ", "preprocessor_config.json: "


@pytest.mark.parametrize("num_samples", [1, 16_000, 480_000, 960_000])
def test_audio_of_any_length_is_one_window_of_memory_and_no_prompt(tmp_path: Path, num_samples: int) -> None:
    layers = 32 * (2 * 1500 * (4 * 1280**2 + 2 * 1280 * 5120) + 4 * 1500**2 * 1280)
    assert family_of(tmp_path, NAME).plan_audio(num_samples) == MediaPlan(
        modality="audio",
        visual_tokens=0,
        wrapper_tokens=0,
        encoder_input=EncoderInput(kind="mel", count=1, rows=128, cols=3000),
        patches=1500,
        encoder_flops=2 * 3000 * 3 * 128 * 1280 + 2 * 1500 * 3 * 1280**2 + layers,
        decode_bytes=4 * num_samples,
        self_kv_bytes=0,
        cross_kv_bytes=2 * 32 * 1500 * 20 * 64 * 2,
        cross_rows=1500,
    )


def test_the_decoder_holds_text_and_audio_in_every_layer(tmp_path: Path) -> None:
    family = family_of(tmp_path, NAME, {CONFIG + "decoder_layers": 4})
    assert (family.language.layers, family.language.cross_layers, family.language.context_tokens) == (4, 4, 448)
    assert family.sample_rate_hz == 16_000


@pytest.mark.parametrize("num_samples", [0, -1])
def test_no_audio_is_refused(tmp_path: Path, num_samples: int) -> None:
    with pytest.raises(PlanRefused, match="1 sample at least"):
        family_of(tmp_path, NAME).plan_audio(num_samples)


def test_pictures_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanRefused, match="Whisper reads no image; limit: it reads audio"):
        family_of(tmp_path, NAME).plan_image(64, 64)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({FEATURES + "feature_size": 80}, "feature_size = 80; limit: the encoder's num_mel_bins = 128"),
        ({FEATURES + "chunk_length": 20}, "chunk_length = 20; limit: the encoder's max_source_positions = 1500"),
        ({FEATURES + "hop_length": 200}, "the encoder's max_source_positions = 1500"),
        ({FEATURES + "feature_extractor_type": "OtherExtractor"}, "feature_extractor_type = 'OtherExtractor'"),
        ({CONFIG + "num_hidden_layers": 4}, "num_hidden_layers = 4; limit: encoder_layers = 32"),
    ],
)
def test_settings_that_do_not_fit_the_encoder_are_refused_at_load(
    tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    with pytest.raises(UnsupportedCheckpoint) as caught:
        family_of(tmp_path, NAME, changes)
    assert words in str(caught.value)
