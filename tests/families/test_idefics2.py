from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proteus.families.checkpoint import UnsupportedCheckpoint
from proteus.families.family import EncoderInput, MediaPlan, PlanRefused
from proteus.families.idefics2 import Idefics2, Resampler
from proteus.families.language_model import LanguageModel
from proteus.families.vision_tower import VisionTower
from tests.families.qwen_folders import ABSENT, family_of, picture_tokens

NAME = "idefics2-8b"
IMAGES = "preprocessor_config.json:"
WHOLE = {f"{IMAGES}do_image_splitting": False}
SIZES = [
    (336, 336),
    (480, 640),
    (640, 480),
    (1080, 1920),
    (3024, 4032),
    (10, 1000),
    (1000, 10),
    (100, 7000),
    (4000, 30),
    (2, 500),
]
SMALL = Idefics2(
    language=LanguageModel(layers=1, kv_heads=1, head_dim=1, hidden_size=1, context_tokens=1),
    tower=VisionTower(patch_px=14, width=1, feed_forward=1, layers=1),
    resampler=Resampler(latents=64, layers=1, heads=1, kv_heads=1, head_dim=1),
    text_feed_forward=1,
    shortest_px=378,
    longest_px=980,
    splits=True,
)


@pytest.mark.parametrize(("height_px", "width_px"), SIZES)
def test_tokens_never_depend_on_the_picture(tmp_path: Path, height_px: int, width_px: int) -> None:
    assert picture_tokens(family_of(tmp_path, NAME), height_px, width_px) == (320, 326)
    assert picture_tokens(family_of(tmp_path, NAME, WHOLE), height_px, width_px) == (64, 66)


@pytest.mark.parametrize(("width_px", "height_px"), [(1, 1), (1, 500), (500, 1)])
def test_one_pixel_cannot_be_split_but_can_be_seen_whole(tmp_path: Path, width_px: int, height_px: int) -> None:
    with pytest.raises(PlanRefused, match=f"{width_px}x{height_px} px cannot be split.* sides of 2 px or more"):
        family_of(tmp_path, NAME).plan_image(width_px, height_px)
    assert picture_tokens(family_of(tmp_path, NAME, WHOLE), height_px, width_px) == (64, 66)


def test_a_picture_without_pixels_is_refused(tmp_path: Path) -> None:
    assert picture_tokens(family_of(tmp_path, NAME, WHOLE), 0, 5) is None


@pytest.mark.parametrize(
    ("width_px", "height_px", "rows_px", "cols_px"),
    [(640, 480, 480, 640), (1, 1, 378, 378), (4000, 3000, 735, 980), (3000, 4000, 980, 735), (5000, 37, 378, 980)],
)
def test_sides_of_the_encoder_input(tmp_path: Path, width_px: int, height_px: int, rows_px: int, cols_px: int) -> None:
    shape = family_of(tmp_path, NAME, WHOLE).plan_image(width_px, height_px).encoder_input
    assert shape == EncoderInput(kind="tiles", count=1, rows=rows_px, cols=cols_px, patch_px=14)


def test_plan_of_a_split_picture(tmp_path: Path) -> None:
    patches = 34 * 45  # of 480 x 640 px, the size of the whole, to which the quarters are padded
    layers = 27 * (2 * patches * (4 * 1152**2 + 2 * 1152 * 4304) + 4 * patches**2 * 1152)
    gate = 2 * patches * (2 * 1152 * 14336 + 14336 * 4096)
    seen = patches + 64
    projections = 2 * (64 * 4096 * 1536 + 2 * seen * 4096 * 384 + 64 * 1536 * 4096)
    resampler = 3 * (projections + 4 * 64 * seen * 1536 + 2 * 3 * 64 * 4096 * 16384)
    assert family_of(tmp_path, NAME).plan_image(640, 480) == MediaPlan(
        modality="image",
        visual_tokens=320,
        wrapper_tokens=6,
        encoder_input=EncoderInput(kind="tiles", count=5, rows=480, cols=640, patch_px=14),
        patches=5 * patches,
        encoder_flops=5 * (2 * patches * 588 * 1152 + layers + gate + resampler),
        decode_bytes=921_600,
        self_kv_bytes=326 * 2 * 32 * 8 * 128 * 2,
    )


@given(width_px=st.integers(2, 20_000), height_px=st.integers(2, 20_000))
def test_every_view_stays_within_the_bounds(width_px: int, height_px: int) -> None:
    shape = SMALL.plan_image(width_px, height_px).encoder_input
    assert 378 <= shape.rows <= 980
    assert 378 <= shape.cols <= 980


def test_absent_keys_take_the_defaults_of_transformers(tmp_path: Path) -> None:
    absent = {f"{IMAGES}size": ABSENT, "processor_config.json": ABSENT, "config.json:perceiver_config": ABSENT}
    assert family_of(tmp_path, NAME, absent) == family_of(tmp_path, NAME)
    assert family_of(tmp_path, NAME, {f"{IMAGES}do_image_splitting": ABSENT}).plan_image(9, 9).visual_tokens == 64


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (f"{IMAGES}do_resize", False, "do_resize"),
        (f"{IMAGES}do_pad", False, "do_pad"),
        (f"{IMAGES}do_image_splitting", "yes", "do_image_splitting"),
        (f"{IMAGES}size", {"height": 980, "width": 980}, "shortest_edge"),
        (f"{IMAGES}image_processor_type", "SiglipImageProcessor", "image_processor_type"),
        ("processor_config.json:image_seq_len", 128, "resampler_n_latents = 64"),
    ],
)
def test_settings_that_cannot_be_served_are_refused_by_name(tmp_path: Path, key: str, value: Any, said: str) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=said):
        family_of(tmp_path, NAME, {key: value})
