"""A blurred picture shows nothing of what it was, whatever it was; what cannot be decoded kills nothing but itself."""

from __future__ import annotations

import asyncio
import io
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
from PIL import Image

from proteus.client.drawing import Drawn
from proteus.deployment import Deployment
from proteus.errors import InvalidPicture, Unavailable
from proteus.gateway.moderation.blur import Blurring, coarse
from proteus.generation.encode import encode as encode_drawn
from proteus.generation.encode import settings_of
from proteus.limits import DrawnFormat
from proteus.media.probe import probe_picture
from tests.gateway.running import DEMO
from tests.preprocess.pictures import EVERY_FORMAT, encode, noise

Done = TypeVar("Done")


@pytest.fixture(scope="module")
def blurring() -> Iterator[Blurring]:
    made = Blurring(Deployment.load(DEMO))
    yield made
    asyncio.run(made.close())


def awaited(doing: Callable[[], Awaitable[Done]]) -> Done:
    async def run() -> Done:
        return await doing()

    return asyncio.run(run())


def of_upload(blurring: Blurring, data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(awaited(lambda: blurring.of_upload(data, probe_picture(data)))))


def sharpness(picture: Image.Image) -> float:
    """How much neighbours differ, on average."""
    pixels = np.asarray(picture.convert("L"), dtype=np.float32)
    return float(np.abs(np.diff(pixels, axis=0)).mean() + np.abs(np.diff(pixels, axis=1)).mean())


def letters(width_px: int, height_px: int) -> Image.Image:
    """Stripes of 4 px: what can be read."""
    rows, columns = np.mgrid[:height_px, :width_px]
    pixels = (((rows // 4 + columns // 4) % 2) * 255).astype(np.uint8)
    return Image.fromarray(pixels).convert("RGB")


@pytest.mark.parametrize("name", EVERY_FORMAT)
def test_a_picture_of_every_format_is_blurred(blurring: Blurring, name: str) -> None:
    blurred = of_upload(blurring, encode(letters(300, 200), name))
    assert (blurred.format, blurred.size) == ("PNG", (256, 171))
    assert sharpness(blurred) < 1 < sharpness(letters(300, 200))


def test_it_keeps_the_colours(blurring: Blurring) -> None:
    upright = noise(120, 90)
    blurred = of_upload(blurring, encode(upright))
    assert np.allclose(np.asarray(blurred).mean(axis=(0, 1)), np.asarray(upright).mean(axis=(0, 1)), atol=12)


@pytest.mark.parametrize("size", [(32, 32), (2_000, 1_000), (40, 800), (800, 40)])
def test_it_is_small_and_of_the_same_shape(blurring: Blurring, size: tuple[int, int]) -> None:
    least = Deployment.load(DEMO).image.min_side_px
    blurred = of_upload(blurring, encode(letters(*size)))
    assert min(blurred.size) >= min(least, *size)
    assert abs(blurred.size[0] / blurred.size[1] - size[0] / size[1]) < 0.1 * size[0] / size[1]
    assert sharpness(blurred) < sharpness(letters(*size)) / 4


@pytest.mark.parametrize("size", [(1, 1), (3, 2), (15, 8), (16, 16), (9_000, 1)])
def test_the_coarse_size_is_one(size: tuple[int, int]) -> None:
    assert min(coarse(size)) >= 1
    assert max(coarse(size)) <= max(1, min(12, max(size) // 8))


def test_a_damaged_picture_is_refused_and_the_next_is_blurred(blurring: Blurring) -> None:
    whole = encode(letters(300, 200), "JPEG")
    header = probe_picture(whole)
    with pytest.raises(InvalidPicture):
        awaited(lambda: blurring.of_upload(whole[: len(whole) // 2], header))
    assert of_upload(blurring, whole).size == (256, 171)


def test_a_picture_that_kills_its_process_fails_alone(blurring: Blurring) -> None:
    data = encode(letters(300, 200))
    of_upload(blurring, data)
    worker = blurring._worker
    assert worker is not None
    os.kill(worker.process.pid, signal.SIGKILL)
    with pytest.raises(InvalidPicture, match="died"):
        of_upload(blurring, data)
    assert of_upload(blurring, data).size == (256, 171)


def test_a_process_that_does_not_start_is_told(tmp_path: Path) -> None:
    lost = Deployment.load(DEMO)
    made = Blurring(lost)
    made._command = [made._command[0], "-c", ""]
    data = encode(letters(40, 40))
    with pytest.raises(Unavailable):
        of_upload(made, data)
    asyncio.run(made.close())


@pytest.mark.parametrize("kind", ["png", "jpeg", "webp"])
@pytest.mark.parametrize("settings", [{"prompt": "a face", "seed": 7}, None])
def test_a_drawn_picture_keeps_its_kind_size_and_settings(
    blurring: Blurring, kind: DrawnFormat, settings: dict[str, object] | None
) -> None:
    drawn = letters(64, 96)
    data = encode_drawn(np.asarray(drawn), kind, quality=90, settings=settings)
    picture = Drawn(
        index=0, data=data, format=kind, width_px=64, height_px=96, seed=7, image_index=0, settings=settings or {}
    )
    blurred = awaited(lambda: blurring.of_drawn(picture))
    opened = Image.open(io.BytesIO(blurred))
    assert ((opened.format or "").lower(), opened.size) == (kind, (64, 96))
    assert sharpness(opened) < sharpness(drawn) / 10
    if settings is not None:
        assert settings_of(blurred) == settings
