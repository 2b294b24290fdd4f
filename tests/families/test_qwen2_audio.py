from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proteus.families.family import PlanRefused
from proteus.families.qwen2_audio import halved
from tests.families.qwen_folders import family_of

NAME = "Qwen2-Audio-7B"


@pytest.mark.parametrize(
    ("num_samples", "tokens"),
    [(321, 1), (16_000, 25), (84_800, 132), (480_000, 750), (496_000, 750), (10_000_000, 750)],
)
def test_tokens_are_those_of_the_processor(tmp_path: Path, num_samples: int, tokens: int) -> None:
    plan = family_of(tmp_path, NAME).plan_audio(num_samples)
    assert (plan.visual_tokens, plan.wrapper_tokens) == (tokens, 0)
    assert plan.self_kv_bytes == tokens * 2 * 32 * 32 * 128 * 2
    assert plan.decode_bytes == 4 * num_samples


@pytest.mark.parametrize("num_samples", [1, 160, 320])
def test_audio_that_leaves_no_placeholder_is_refused(tmp_path: Path, num_samples: int) -> None:
    with pytest.raises(PlanRefused, match="is too short; limit: 321 samples at least"):
        family_of(tmp_path, NAME).plan_audio(num_samples)


def test_no_audio_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanRefused, match="audio of 0 samples"):
        family_of(tmp_path, NAME).plan_audio(0)


def test_the_whole_window_is_encoded_and_connected(tmp_path: Path) -> None:
    family = family_of(tmp_path, NAME)
    layers = 32 * (2 * 1500 * (4 * 1280**2 + 2 * 1280 * 5120) + 4 * 1500**2 * 1280)
    convolutions = 2 * 3000 * 3 * 128 * 1280 + 2 * 1500 * 3 * 1280**2
    assert family.plan_audio(400).encoder_flops == convolutions + layers + 2 * 750 * 1280 * 4096
    assert family.sample_rate_hz == 16_000


@settings(deadline=None)
@given(st.integers(1, 3000))
def test_more_audio_never_takes_fewer_tokens(mel_frames: int) -> None:
    assert halved(mel_frames) <= halved(mel_frames + 1) <= halved(mel_frames) + 1
