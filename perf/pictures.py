"""Real pictures and questions about them, of the sizes and numbers that the contract accepts."""

from __future__ import annotations

import io
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from PIL import Image

from export.world.draw import draw
from export.world.questions import TYPES, question_of
from export.world.scene import scene
from proteus.cost.buckets import size_bucket
from proteus.errors import ProteusError
from proteus.limits import ImageLimits, LimitTables, PictureFormat
from proteus.media.accept import accept_picture
from proteus.media.header import PictureHeader

MAX_RATIO = 2.0  # of the sides; a camera's pictures are hardly more elongated
TEXT_TOKENS = 256  # of the context, left for the question and the answer
FORMATS = ("png", "jpeg")
NOISE, QUALITY = 3.0, 90  # of 255, and JPEG's: as a camera's, for clean drawings are smaller than any photograph


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One encoded picture and a question about it."""

    picture: bytes
    question: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Photograph:
    """Width, height and format of what is met often: an icon, a page's picture, a screen, a telephone's camera."""

    width_px: int
    height_px: int
    format: PictureFormat

    @property
    def bucket(self) -> str:
        return size_bucket(self.width_px * self.height_px)


PHOTOGRAPHS = (
    Photograph(width_px=256, height_px=192, format="png"),
    Photograph(width_px=1024, height_px=768, format="jpeg"),
    Photograph(width_px=2000, height_px=1500, format="jpeg"),
    Photograph(width_px=4000, height_px=3000, format="jpeg"),
)


def accepted_photographs(limits: ImageLimits) -> Iterator[Photograph]:
    """Those of `PHOTOGRAPHS` that `[image]` lets in."""
    for one in PHOTOGRAPHS:
        header = PictureHeader(format=one.format, width_px=one.width_px, height_px=one.height_px)
        try:
            accept_picture(header, 1, limits)
        except ProteusError:
            continue
        yield one


@lru_cache(maxsize=64)
def photograph(kind: Photograph, seed: int) -> Asked:
    """A drawn scene of that size with a camera's noise, and one question about it."""
    drawn, question = _scene(seed, random.Random(seed))
    size = (kind.width_px, kind.height_px)
    grain = np.random.default_rng(seed).standard_normal((kind.height_px, kind.width_px, 1), dtype=np.float32) * NOISE
    pixels = np.asarray(drawn.resize(size, Image.Resampling.BICUBIC), dtype=np.float32) + grain
    picture = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    return Asked(picture=_encoded(picture, kind.format, quality=QUALITY), question=question)


def held_out(limits: LimitTables, num_pictures: int) -> list[Asked]:
    """Pictures the model was not trained on, in the formats that are accepted by turns, each with one question."""
    formats = [name for name in FORMATS if name in limits.image.formats]
    max_pixels = min(limits.image.max_pixels, limits.tiers.auto.max_pixels)
    return [_asked(seed, limits.image, max_pixels, formats[seed % len(formats)]) for seed in range(num_pictures)]


def accepted_size(limits: ImageLimits, max_pixels: int, rng: random.Random) -> tuple[int, int]:
    """(width, height) in px that the contract accepts; areas are as likely in each order of magnitude."""
    ratio = min(limits.max_aspect_ratio, MAX_RATIO) ** rng.random()
    largest = min(math.sqrt(max_pixels / ratio), limits.max_side_px)
    short_px = max(limits.min_side_px, math.floor(limits.min_side_px * (largest / limits.min_side_px) ** rng.random()))
    long_px = max(short_px, min(math.floor(short_px * ratio), limits.max_side_px, max_pixels // short_px))
    return (long_px, short_px) if rng.random() < 0.5 else (short_px, long_px)


def most_pictures(limits: LimitTables) -> int:
    """Pictures that one request can have, by every limit that counts them; at least one."""
    tier, request = limits.tiers.auto, limits.admission.request
    room = [limits.image.max_pictures, (limits.llm.context_tokens - TEXT_TOKENS) // tier.max_visual_tokens]
    if request.decoded_pixels is not None:
        room.append(request.decoded_pixels // min(limits.image.max_pixels, tier.max_pixels))
    return max(1, min(room))


def _asked(seed: int, limits: ImageLimits, max_pixels: int, format_name: str) -> Asked:
    rng = random.Random(seed)
    drawn, question = _scene(seed, rng)
    return Asked(picture=_encoded(drawn.resize(accepted_size(limits, max_pixels, rng)), format_name), question=question)


def _scene(seed: int, rng: random.Random) -> tuple[Image.Image, str]:
    """A drawing and one question about it."""
    drawn = scene("heldout", seed)
    found = (question_of(drawn, type_, rng) for type_ in rng.sample(TYPES, len(TYPES)))
    return draw(drawn), next(one.text for one in found if one is not None)


def _encoded(picture: Image.Image, format_name: str, **options: int) -> bytes:
    encoded = io.BytesIO()
    picture.save(encoded, format_name, **options)
    return encoded.getvalue()
