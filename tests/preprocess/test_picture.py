"""From a file to pixel_values, against transformers' own processor fed with the same upright RGB."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from proteus.families.llava import CLIP_MEAN, CLIP_STD, ResizeRule
from proteus.preprocess.picture import Preprocess
from tests.preprocess.pictures import LIMITS, encode, noise, oriented

RULE = ResizeRule(
    shortest_edge_px=96,
    size_px=None,
    resample=3,
    crop_px=(96, 96),
    rescale_factor=1 / 255,
    mean=CLIP_MEAN,
    std=CLIP_STD,
)
# One 8-bit level after rescale and the smallest standard deviation.
ONE_LEVEL = 1 / 255 / min(CLIP_STD)
SIZES = [(8, 8), (97, 95), (96, 96), (336, 336), (641, 479), (33, 200), (200, 11), (901, 667)]


@pytest.fixture(scope="module")
def theirs() -> Any:
    """Their class by name: the Pillow backend."""
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    processor = CLIPImageProcessorPil(size={"shortest_edge": 96}, crop_size={"height": 96, "width": 96})

    def pixel_values(upright: Image.Image) -> npt.NDArray[np.float32]:
        return np.asarray(processor(images=upright, return_tensors="np")["pixel_values"][0])

    return pixel_values


@pytest.mark.oracle
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("orientation", range(1, 9))
def test_turned_file_of_any_size_gives_the_same_pixel_values(
    theirs: Any, size: tuple[int, int], orientation: int
) -> None:
    upright = noise(*size, seed=orientation)
    for name in ("PNG", "TIFF"):
        got = Preprocess(LIMITS, RULE)(oriented(upright, orientation, name))
        assert np.array_equal(got, theirs(upright)), name


@pytest.mark.oracle
@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "CMYK"])
@pytest.mark.parametrize("size", SIZES[1:5])
def test_file_of_any_mode_gives_the_pixel_values_of_its_rgb(theirs: Any, mode: str, size: tuple[int, int]) -> None:
    picture = noise(*size).convert(mode)
    got = Preprocess(LIMITS, RULE)(encode(picture, "TIFF" if mode == "CMYK" else "PNG"))
    assert np.array_equal(got, theirs(picture.convert("RGB")))


@pytest.mark.oracle
@pytest.mark.parametrize("size", SIZES[1:5])
def test_transparent_file_gives_those_of_its_composite_within_a_level(theirs: Any, size: tuple[int, int]) -> None:
    picture = noise(*size).convert("RGBA")
    picture.putalpha(noise(*size, seed=9).convert("L"))
    over_white = Image.alpha_composite(Image.new("RGBA", size, "white"), picture).convert("RGB")
    got = Preprocess(LIMITS, RULE)(encode(picture))
    assert np.abs(got - theirs(over_white)).max() <= ONE_LEVEL * 1.001


@pytest.mark.oracle
def test_picture_made_smaller_gives_those_of_the_smaller_picture(theirs: Any) -> None:
    smaller = noise(400, 300).resize((200, 150), Image.Resampling.LANCZOS, reducing_gap=3.0)
    got = Preprocess(LIMITS, RULE)(encode(noise(400, 300)), (200, 150))
    assert np.array_equal(got, theirs(smaller))
