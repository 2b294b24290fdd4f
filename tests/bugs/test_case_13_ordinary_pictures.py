"""Seen: a server dies without a message on an ordinary wallpaper of 1920x1080.

Cause: the decoder ran inside of the server, and took it along.
Right: ordinary pictures of any size are answered by processes of their own, and stay so after many. Sizes are drawn at
random; the seed is Hypothesis's, which shows the size that fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proteus.deployment import Deployment
from proteus.preprocess.pool import DecodePool
from tests.preprocess.pictures import encode, noise

DEMO = Path(__file__).parents[2] / "deployments" / "demo.toml"


@pytest.fixture(scope="module")
def pool() -> Iterator[DecodePool]:
    made = DecodePool(Deployment.load(DEMO))
    yield made
    made.close()


@pytest.mark.parametrize("name", ["JPEG", "PNG", "WEBP"])
def test_wallpaper_is_answered_and_nothing_dies(pool: DecodePool, name: str) -> None:
    before = {worker.process.pid for worker in pool._all()}
    options = {"WEBP": {"method": 0}, "PNG": {"compress_level": 1}}.get(name, {})
    assert pool.submit(encode(noise(1920, 1080), name, **options)).result().shape == (3, 96, 96)
    assert before <= {worker.process.pid for worker in pool._all()}  # the spare may come meanwhile


@settings(max_examples=60, deadline=None)
@given(width_px=st.integers(8, 700), ratio=st.floats(0.06, 16), name=st.sampled_from(["JPEG", "PNG", "BMP", "TIFF"]))
def test_any_size_is_answered_and_nothing_dies(pool: DecodePool, width_px: int, ratio: float, name: str) -> None:
    before = {worker.process.pid for worker in pool._all()}
    height_px = min(max(8, round(width_px * ratio)), 900)
    assert pool.submit(encode(noise(width_px, height_px), name)).result().shape == (3, 96, 96)
    assert before <= {worker.process.pid for worker in pool._all()}  # the spare may come meanwhile
