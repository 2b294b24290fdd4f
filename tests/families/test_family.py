from __future__ import annotations

from pathlib import Path

import pytest

from proteus.families.checkpoint import ConfigTable
from proteus.families.family import EncoderInput, Family, MediaPlan, PlanRefused, picture_bytes, video_bytes


class Nothing(Family):
    name = "Nothing"
    model_types = ("nothing",)
    modalities = ()

    @classmethod
    def from_checkpoint(cls, folder: Path, config: ConfigTable) -> Nothing:
        return cls()


def test_a_family_refuses_what_it_does_not_state() -> None:
    family = Nothing.from_checkpoint(Path(), ConfigTable("config.json", {}))
    for ask in (
        lambda: family.plan_image(1, 1),
        lambda: family.plan_video(1, 1, 1),
        lambda: family.plan_audio(1),
        lambda: family.sample_rate_hz,
    ):
        with pytest.raises(PlanRefused, match="Nothing reads no"):
            ask()


def test_a_prompt_holds_visual_and_wrapper_tokens() -> None:
    plan = MediaPlan(
        modality="image",
        visual_tokens=5,
        wrapper_tokens=2,
        encoder_input=EncoderInput(kind="tiles", count=1, rows=2, cols=2),
        patches=1,
        encoder_flops=1,
        decode_bytes=1,
        self_kv_bytes=1,
    )
    assert plan.prompt_tokens == 7


def test_bytes_of_pixels() -> None:
    assert (picture_bytes(3, 2), video_bytes(4, 3, 2)) == (18, 72)


@pytest.mark.parametrize("size", [(0, 1), (1, 0), (-1, -1)])
def test_media_without_pixels_are_refused(size: tuple[int, int]) -> None:
    with pytest.raises(PlanRefused, match="sides of 1 px or more"):
        picture_bytes(*size)
    with pytest.raises(PlanRefused, match="sides of 1 px or more"):
        video_bytes(1, *size)


def test_a_video_without_frames_is_refused() -> None:
    with pytest.raises(PlanRefused, match="video of 0 frames"):
        video_bytes(0, 1, 1)
