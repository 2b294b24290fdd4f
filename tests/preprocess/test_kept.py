"""The processor cache: what it gives is what decoding gave, to who may see it, known by its bytes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from proteus.cache.key import scope_key
from proteus.deployment import Deployment
from proteus.errors import InvalidPicture
from proteus.families.llava import LlavaFamily
from proteus.limits_cache import MediaCache
from proteus.preprocess.kept import KeptPixels
from proteus.preprocess.picture import Preprocess
from proteus.preprocess.pool import DecodePool, Note, Pixels
from proteus.preprocess.rules import pixel_rules
from proteus.preprocess.wire import Size
from tests.preprocess.pictures import encode, noise

DEMO = Deployment.load(Path(__file__).parents[2] / "deployments" / "demo.toml")
RULES = pixel_rules(DEMO.image, LlavaFamily.from_checkpoint(DEMO.checkpoint_path).resize)
RED, BLUE = encode(noise(20, 16, 0)), encode(noise(20, 16, 1))
SCOPE, OTHER_SCOPE = scope_key("tenant"), scope_key("other")
BROKEN = RED[:60]


class Pool(DecodePool):
    """Decodes here and at once, and counts."""

    def __init__(self) -> None:
        self.decoded: list[tuple[bytes, Size | None]] = []
        self._preprocess = Preprocess.from_deployment(DEMO)

    def submit(self, data: bytes, target_px: Size | None = None, note: Note | None = None) -> Future[Pixels]:
        self.decoded.append((data, target_px))
        done: Future[Pixels] = Future()
        try:
            pixels = self._preprocess(data, target_px)
        except InvalidPicture as error:
            done.set_exception(error)
            return done
        if note is not None:
            note(pixels, 0.002)
        done.set_result(pixels)
        return done

    def close(self) -> None:
        pass


@pytest.fixture
def pool() -> Pool:
    return Pool()


def kept(pool: Pool, *, max_bytes: int = 1 << 20) -> KeptPixels:
    return KeptPixels(pool, MediaCache(max_bytes=max_bytes, max_age_s=60.0), RULES)


def test_a_hit_has_the_bits_of_what_was_decoded_and_says_what_that_took(pool: Pool) -> None:
    pictures = kept(pool)
    first, again = pictures.start(RED, None, SCOPE), pictures.start(RED, None, SCOPE)
    assert (first.saved_us, again.saved_us) == (0, 2000)
    assert again.pixels.result().tobytes() == first.pixels.result().tobytes()
    assert len(pool.decoded) == 1
    figures = pictures.figures()
    assert figures.values("proteus_processor_cache_lookups_total") == {"": 2}
    assert figures.values("proteus_processor_cache_hits_total") == {"": 1}
    assert figures.values("proteus_processor_cache_saved_seconds_total") == {"": 0.002}
    held = figures.values("proteus_processor_cache_bytes")
    assert held == {"held": first.pixels.result().nbytes, "max": 1 << 20}


@pytest.mark.parametrize(
    ("data", "target_px", "scope"),
    [(BLUE, None, SCOPE), (RED, (10, 8), SCOPE), (RED, None, OTHER_SCOPE), (RED, None, bytes(32)), (RED, None, b"")],
)
def test_another_picture_size_or_scope_is_new(pool: Pool, data: bytes, target_px: Size | None, scope: bytes) -> None:
    pictures = kept(pool)
    pictures.start(RED, None, SCOPE)
    assert pictures.start(data, target_px, scope).saved_us == 0
    assert len(pool.decoded) == 2


def test_a_picture_is_known_by_its_bytes_which_are_hashed_here(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if SHA-256 of the whole key collided: the pictures' own digests still tell them apart."""
    monkeypatch.setattr("proteus.preprocess.kept.processor_key", lambda key: bytes(32))
    pictures = kept(pool)
    pictures.start(RED, None, SCOPE)
    other = pictures.start(BLUE, None, SCOPE)
    assert other.saved_us == 0
    assert other.pixels.result().tobytes() == Preprocess.from_deployment(DEMO)(BLUE).tobytes()
    assert pictures.figures().values("proteus_processor_cache_collisions_total") == {"": 1}


def test_what_failed_is_not_kept(pool: Pool) -> None:
    pictures = kept(pool)
    for _ in range(2):
        with pytest.raises(InvalidPicture):
            pictures.start(BROKEN, None, SCOPE).pixels.result()
    assert len(pool.decoded) == 2
    assert pictures.figures().values("proteus_processor_cache_bytes")["held"] == 0


def test_nobody_can_write_into_what_is_kept(pool: Pool) -> None:
    pictures = kept(pool)
    for _ in range(2):
        with pytest.raises(ValueError, match="read-only"):
            pictures.start(RED, None, SCOPE).pixels.result()[:] = 0


def test_a_cache_without_room_looks_for_nothing(pool: Pool) -> None:
    pictures = kept(pool, max_bytes=0)
    for _ in range(2):
        assert pictures.start(RED, None, SCOPE).saved_us == 0
    assert len(pool.decoded) == 2
    assert pictures.figures().values("proteus_processor_cache_lookups_total") == {"": 0}


@pytest.fixture(scope="module")
def real() -> Iterator[KeptPixels]:
    made = KeptPixels.from_deployment(DEMO)
    yield made
    made.close()


def test_real_workers_fill_it_with_what_they_decoded(real: KeptPixels) -> None:
    expected = Preprocess.from_deployment(DEMO)
    for _ in range(2):
        for data, target_px in ((RED, None), (BLUE, None), (RED, (10, 8))):
            pixels = real.start(data, target_px, SCOPE).pixels.result(timeout=30)
            assert np.array_equal(pixels, expected(data, target_px))
    assert real.figures().values("proteus_processor_cache_hits_total") == {"": 3}
    assert real.start(RED, None, SCOPE).saved_us > 0


def test_rules_follow_the_deployment() -> None:
    assert RULES.background_rgb == DEMO.image.background_rgb
    black = DEMO.image.model_copy(update={"background": "#000000", "animation": "refuse"})
    changed = pixel_rules(black, RULES.resize)
    assert changed == replace(RULES, background_rgb=(0, 0, 0), animation="refuse")
    assert re.search(r"\bpil \d", RULES.decoders)
