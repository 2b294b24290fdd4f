"""Scene graphs: what is in a picture, as numbers and words, before anything is drawn.

A scene is a pure function of (split, seed). It holds shapes on a 3x3 grid and perhaps a written number, or a bar chart.
Positions are cells, so that "where" has one true answer. Pictures come from `draw`, questions from `questions`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

WORLD_VERSION = 1  # part of every seed: a change to scenes, pictures or questions takes a new number

Split = Literal["train", "heldout"]

SHAPES = ("circle", "square", "triangle", "cross", "ring")
COLOURS = {
    "red": (220, 40, 40),
    "green": (40, 160, 60),
    "blue": (50, 80, 220),
    "yellow": (240, 215, 50),
    "purple": (140, 60, 180),
    "orange": (245, 130, 20),
    "cyan": (70, 205, 225),
    "pink": (245, 150, 195),
}
BACKGROUNDS = {"white": (250, 250, 250), "grey": (120, 120, 120), "black": (15, 15, 15)}
PLACES = ("top left", "top", "top right", "left", "centre", "right", "bottom left", "bottom", "bottom right")

MIN_SIDE_PX, MAX_SIDE_PX, MAX_ASPECT = 32, 256, 1.5
DETAIL_SIDE_PX = 64  # below this side neither digits nor small shapes nor charts can be read
MAX_SHAPES, MAX_DIGITS, MAX_VALUE = 4, 3, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    shape: str
    colour: str
    cell: int  # 0..8, row by row
    small: bool
    radius: float  # of half a cell
    shift: tuple[float, float]  # of half a cell, right and down

    @property
    def place(self) -> str:
        return PLACES[self.cell]

    @property
    def name(self) -> str:
        return f"{self.colour} {self.shape}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    digits: str
    row: int  # 0..2, of the grid
    column: int  # 0..5: sixths of the width, the first digit's
    shift: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    colour: str
    value: int  # 1..MAX_VALUE
    width: float  # of a third of the picture


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    split: Split
    seed: int
    width_px: int
    height_px: int
    background: str
    shapes: tuple[Shape, ...] = ()
    number: Number | None = None
    bars: tuple[Bar, ...] = ()


def is_heldout_shape(shape: str, colour: str, cell: int) -> bool:
    """One (shape, colour, place) in eleven is never trained on, though each of its pairs is."""
    return (3 * SHAPES.index(shape) + 5 * list(COLOURS).index(colour) + 7 * cell) % 11 == 0


def is_heldout_number(digits: str) -> bool:
    """One number in nine of two digits or more is never trained on."""
    return len(digits) > 1 and int(digits) % 9 == 4


def is_heldout_chart(bars: tuple[Bar, ...]) -> bool:
    """One row of bar values in five is never trained on."""
    return sum((position + 2) * bar.value for position, bar in enumerate(bars)) % 5 == 0


def scene(split: Split, seed: int) -> Scene:
    """The scene of this split and seed: no held-out composition in `train`, at least one in each of `heldout`."""
    rng = random.Random(f"proteus-world-{WORLD_VERSION}-{split}-{seed}")
    width_px, height_px = _size(rng)
    detailed = min(width_px, height_px) >= DETAIL_SIDE_PX
    background = rng.choice(list(BACKGROUNDS))
    if detailed and rng.random() < 0.2:
        bars = _bars(rng, split)
        return Scene(split=split, seed=seed, width_px=width_px, height_px=height_px, background=background, bars=bars)
    number = _number(rng, split) if detailed and rng.random() < 0.5 else None
    cells = [cell for cell in range(9) if number is None or cell // 3 != number.row]
    return Scene(
        split=split,
        seed=seed,
        width_px=width_px,
        height_px=height_px,
        background=background,
        shapes=_shapes(rng, split, cells, detailed=detailed),
        number=number,
    )


def _size(rng: random.Random) -> tuple[int, int]:
    side = round(MIN_SIDE_PX * (MAX_SIDE_PX / MIN_SIDE_PX) ** rng.random())
    if rng.random() < 0.5:
        return side, side
    other = min(MAX_SIDE_PX, max(MIN_SIDE_PX, round(side * rng.uniform(1 / MAX_ASPECT, MAX_ASPECT))))
    return side, other


def _shapes(rng: random.Random, split: Split, cells: list[int], *, detailed: bool) -> tuple[Shape, ...]:
    count = rng.randint(1, MAX_SHAPES)
    has_small = detailed and rng.random() < 0.4
    shapes = []
    for index, cell in enumerate(rng.sample(cells, count)):
        must_be_heldout = split == "heldout" and index == 0
        while True:
            shape, colour = rng.choice(SHAPES), rng.choice(list(COLOURS))
            heldout = is_heldout_shape(shape, colour, cell)
            if heldout if must_be_heldout else (split == "heldout" or not heldout):
                break
        small = has_small and index == count - 1
        radius = rng.uniform(0.42, 0.5) if small else rng.uniform(0.72, 0.88)
        slack = 0.95 - radius
        shift = (rng.uniform(-slack, slack), rng.uniform(-slack, slack))
        shapes.append(Shape(shape=shape, colour=colour, cell=cell, small=small, radius=radius, shift=shift))
    return tuple(shapes)


def _number(rng: random.Random, split: Split) -> Number:
    while True:
        length = rng.randint(1, MAX_DIGITS)
        digits = str(rng.randrange(10 ** (length - 1) if length > 1 else 0, 10**length))
        if is_heldout_number(digits) == (split == "heldout"):
            break
    shift = (rng.uniform(-0.15, 0.15), rng.uniform(-0.2, 0.2))
    return Number(digits=digits, row=rng.randrange(3), column=rng.randrange(7 - length), shift=shift)


def _bars(rng: random.Random, split: Split) -> tuple[Bar, ...]:
    while True:
        colours = rng.sample(list(COLOURS), rng.randint(2, 3))
        bars = tuple(
            Bar(colour=colour, value=rng.randint(1, MAX_VALUE), width=rng.uniform(0.5, 0.75)) for colour in colours
        )
        if is_heldout_chart(bars) == (split == "heldout"):
            return bars
