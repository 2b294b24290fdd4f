"""What a line of a trace asks, made of its seeds: files of pictures, a question, a prompt to draw by."""

from __future__ import annotations

import io
from pathlib import Path
from random import Random

import numpy as np
from PIL import Image

from export.world.draw import draw
from export.world.scene import WORLD_VERSION, scene
from export.world.wish import drawing, full_wish, prompt
from perf.replay.trace import TracedPicture

VERSION = 1  # a change to what is made of a seed takes a new number
KEPT = Path(f"var/replay/pictures/{WORLD_VERSION}.{VERSION}")
GRAIN_PX, GRAIN = 3, 6.0  # of a photograph: size, and standard deviation of 8-bit values
WORDS = (
    "red",
    "circle",
    "left",
    "of",
    "the",
    "square",
    "many",
    "is",
    "there",
    "a",
    "which",
    "colour",
    "ring",
    "do",
    "you",
)


def picture_file(picture: TracedPicture, folder: Path = KEPT) -> bytes:
    """The encoded bytes; made once and kept in `folder`."""
    name = f"{picture.seed}-{picture.width_px}x{picture.height_px}.{picture.format}"
    kept = folder / name
    if kept.exists():
        return kept.read_bytes()
    folder.mkdir(parents=True, exist_ok=True)
    made = make_picture(picture)
    half = kept.with_suffix(".half")
    half.write_bytes(made)
    half.rename(kept)
    return made


def make_picture(picture: TracedPicture) -> bytes:
    """A scene of the drawn world; grainy as a photograph is, unless it is PNG: those are drawings."""
    size = (picture.width_px, picture.height_px)
    pixels = draw(scene("heldout", picture.seed)).resize(size)
    if picture.format != "png":
        pixels = _grained(pixels, picture.seed)
    encoded = io.BytesIO()
    pixels.save(encoded, picture.format)
    return encoded.getvalue()


def _grained(pixels: Image.Image, seed: int) -> Image.Image:
    small = (-(-pixels.height // GRAIN_PX), -(-pixels.width // GRAIN_PX))
    grain = np.random.default_rng(seed).normal(128, 2 * GRAIN, small).clip(0, 255).astype(np.uint8)
    grey = Image.fromarray(grain).resize(pixels.size).convert("RGB")
    return Image.blend(pixels, grey, 0.3)


def question(seed: int, text_tokens: int) -> str:
    """So many words; each is one token of the demo's."""
    return " ".join(Random(seed).choices(WORDS, k=text_tokens))


def wish(seed: int) -> str:
    """A prompt for `draw`."""
    rng = Random(seed)
    return prompt(full_wish(drawing("heldout", seed)), rng)
