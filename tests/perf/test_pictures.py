"""The load that perf makes is one that the deployment's contract accepts."""

from __future__ import annotations

import io
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from perf.pictures import (
    PHOTOGRAPHS,
    Photograph,
    accepted_photographs,
    accepted_size,
    held_out,
    most_pictures,
    photograph,
)
from proteus.deployment import Deployment
from proteus.limits import ImageLimits, LimitTables
from proteus.media.accept import accept_picture
from proteus.media.header import PictureHeader

DEMO = Deployment.load(Path(__file__).parents[2] / "deployments" / "demo.toml")


def small(**image: object) -> LimitTables:
    return DEMO.model_copy(update={"image": DEMO.image.model_copy(update={"max_pixels": 60_000, **image})})


def size_of(picture: bytes) -> tuple[str, tuple[int, int]]:
    with Image.open(io.BytesIO(picture)) as opened:
        return str(opened.format), opened.size


@given(
    min_side_px=st.integers(1, 300),
    more_px=st.integers(0, 10_000),
    max_aspect_ratio=st.floats(1.0, 30.0),
    max_pixels=st.integers(1, 10**8),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=200)
def test_every_size_is_accepted(
    min_side_px: int, more_px: int, max_aspect_ratio: float, max_pixels: int, seed: int
) -> None:
    changes = {
        "min_side_px": min_side_px,
        "max_side_px": min_side_px + more_px,
        "max_aspect_ratio": max_aspect_ratio,
        "max_pixels": max(max_pixels, min_side_px**2),
    }
    limits: ImageLimits = DEMO.image.model_copy(update=changes)
    width_px, height_px = accepted_size(limits, limits.max_pixels, random.Random(seed))
    accept_picture(PictureHeader(format="png", width_px=width_px, height_px=height_px), 1, limits)


def test_sizes_reach_from_the_smallest_to_the_largest() -> None:
    sizes = [accepted_size(DEMO.image, 4_000_000, random.Random(seed)) for seed in range(300)]
    areas = sorted(width_px * height_px for width_px, height_px in sizes)
    assert areas[0] < 4 * DEMO.image.min_side_px**2 and areas[-1] > 2_000_000
    assert len({width_px > height_px for width_px, height_px in sizes}) == 2


def test_pictures_have_the_formats_and_sizes_of_the_contract() -> None:
    found = [size_of(asked.picture) for asked in held_out(small(min_side_px=100), 6)]
    assert {name for name, _ in found} == {"PNG", "JPEG"}
    assert all(min(size) >= 100 and size[0] * size[1] <= 60_000 for _, size in found)
    only = held_out(small(formats=["jpeg"]), 3)
    assert {size_of(asked.picture)[0] for asked in only} == {"JPEG"}


@pytest.mark.parametrize(
    ("table", "changes", "most"),
    [
        ("image", {}, 4),
        ("image", {"max_pictures": 2}, 2),
        ("llm", {"context_tokens": 400}, 2),
        ("llm", {"context_tokens": 200}, 1),
    ],
)
def test_requests_have_no_more_pictures_than_the_contract_allows(
    table: str, changes: dict[str, int], most: int
) -> None:
    changed = getattr(DEMO, table).model_copy(update=changes)
    assert most_pictures(DEMO.model_copy(update={table: changed})) == most


@pytest.mark.parametrize(("decoded_pixels", "most"), [(8_000_000, 2), (None, 4)])
def test_pixels_of_a_request_bound_its_pictures(decoded_pixels: int | None, most: int) -> None:
    request = DEMO.admission.request.model_copy(update={"decoded_pixels": decoded_pixels})
    admission = DEMO.admission.model_copy(update={"request": request})
    assert most_pictures(DEMO.model_copy(update={"admission": admission})) == most


@pytest.mark.parametrize("kind", PHOTOGRAPHS[:2], ids=lambda kind: kind.bucket)
def test_photographs_are_as_they_say_and_differ(kind: Photograph) -> None:
    found = [photograph(kind, seed) for seed in range(3)]
    assert {size_of(one.picture) for one in found} == {(kind.format.upper(), (kind.width_px, kind.height_px))}
    assert len({one.picture for one in found}) == 3


def test_photographs_that_the_contract_refuses_are_left_out() -> None:
    assert list(accepted_photographs(DEMO.image)) == list(PHOTOGRAPHS)
    png = DEMO.image.model_copy(update={"formats": ["png"]})
    assert [kind.format for kind in accepted_photographs(png)] == ["png"]
