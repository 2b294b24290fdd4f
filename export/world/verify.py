"""Does a picture show what was wished for? Told by rules from its pixels alone: no network judges.

Pixels take the nearest colour of the world's palette; what is not background falls into connected regions; a region has
the place of its middle, the colour of its median pixel, and the shape whose mask it overlaps most.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from export.world.scene import BACKGROUNDS, COLOURS, SHAPES
from export.world.wish import Thing, Wish

MIN_AREA = 0.1  # of a cell: what is smaller is a speck, no shape
MAX_DISTANCE = 70.0  # in RGB, of a region's median to the colour it is called: beyond it the colour is none
MIN_OVERLAP = 0.6  # intersection over union with the best mask: below it the shape is none
_MASK_PX = 32

Bools = NDArray[np.bool_]
Pixels = NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """One connected thing in a picture."""

    cell: int
    colour: str | None
    shape: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    background: str | None  # None where no pixel is of a background's colour
    regions: tuple[Region, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What of a wish a picture shows. `colours` and `shapes` have an entry for each thing that names one."""

    background: bool
    count: bool
    colours: tuple[bool, ...]
    shapes: tuple[bool, ...]

    @property
    def exact(self) -> bool:
        """Whether all of it is there."""
        return self.background and self.count and all(self.colours) and all(self.shapes)


def verify(picture: Pixels, wish: Wish) -> Verdict:
    """Judge `picture`, (H, W, 3)."""
    seen = look(picture)
    found = _matched(wish, seen.regions)
    pairs = list(zip(wish.things, found, strict=True))
    return Verdict(
        background=wish.background in (None, seen.background),
        count=len(seen.regions) == len(wish.things),
        colours=tuple(region is not None and region.colour == thing.colour for thing, region in pairs if thing.colour),
        shapes=tuple(region is not None and region.shape == thing.shape for thing, region in pairs if thing.shape),
    )


def look(picture: Pixels) -> Seen:
    """What is in `picture`, (H, W, 3)."""
    names, palette = _palette()
    height, width = picture.shape[:2]
    distance = ((picture[:, :, None].astype(np.float32) - palette) ** 2).sum(-1)  # (H, W, names)
    label = distance.argmin(-1)
    grounds = [int((label == number).sum()) for number in range(len(BACKGROUNDS))]
    ground = int(np.argmax(grounds))
    regions = []
    for region in _connected(label != ground):
        if region.sum() >= MIN_AREA * height * width / 9:
            regions.append(_region(region, picture))
    return Seen(background=names[ground] if grounds[ground] else None, regions=tuple(regions))


def _region(region: Bools, picture: Pixels) -> Region:
    rows, columns = np.nonzero(region)
    top, bottom, left, right = rows.min(), rows.max(), columns.min(), columns.max()
    height, width = region.shape
    row = min(2, int((top + bottom + 1) / 2 * 3 / height))
    column = min(2, int((left + right + 1) / 2 * 3 / width))
    median = np.median(picture[region], axis=0)
    names, palette = _palette()
    distances = np.sqrt(((palette - median) ** 2).sum(-1))[len(BACKGROUNDS) :]
    nearest = int(distances.argmin())
    crop = region[top : bottom + 1, left : right + 1]
    return Region(
        cell=3 * row + column,
        colour=names[len(BACKGROUNDS) + nearest] if distances[nearest] <= MAX_DISTANCE else None,
        shape=_shape(crop),
    )


def _shape(crop: Bools) -> str | None:
    """The shape whose mask, stretched over the region's box, overlaps it most."""
    height, width = crop.shape
    if not 0.6 <= width / height <= 1.67:
        return None
    scaled = np.asarray(Image.fromarray(crop).resize((_MASK_PX, _MASK_PX), Image.Resampling.NEAREST))
    overlaps = [(scaled & mask).sum() / (scaled | mask).sum() for mask in _masks()]
    best = int(np.argmax(overlaps))
    return SHAPES[best] if overlaps[best] >= MIN_OVERLAP else None


def _connected(mask: Bools) -> list[Bools]:
    """Regions of `mask` that hang together by sides or corners."""
    left = mask.copy()
    regions = []
    height, width = mask.shape
    while left.any():
        start = int(left.argmax())
        region = np.zeros_like(mask)
        stack = [divmod(start, width)]
        left[stack[0]] = False
        while stack:
            y, x = stack.pop()
            region[y, x] = True
            for near_y in range(max(0, y - 1), min(height, y + 2)):
                for near_x in range(max(0, x - 1), min(width, x + 2)):
                    if left[near_y, near_x]:
                        left[near_y, near_x] = False
                        stack.append((near_y, near_x))
        regions.append(region)
    return regions


def _matched(wish: Wish, regions: tuple[Region, ...]) -> list[Region | None]:
    """The region of each thing: what is in its place, or, where no place is named, the region that fits it best."""
    free = list(regions)
    found: dict[int, Region | None] = {}
    order = sorted(range(len(wish.things)), key=lambda index: wish.things[index].cell is None)
    for index in order:
        thing = wish.things[index]
        fitting = [region for region in free if thing.cell in (None, region.cell)]
        found[index] = max(fitting, key=lambda region, thing=thing: _fit(thing, region), default=None)
        if found[index] is not None:
            free.remove(found[index])
    return [found[index] for index in range(len(wish.things))]


def _fit(thing: Thing, region: Region) -> int:
    return (thing.colour == region.colour) + (thing.shape == region.shape)


@lru_cache(maxsize=1)
def _palette() -> tuple[list[str], NDArray[np.float32]]:
    """Backgrounds first, then colours."""
    named = {**BACKGROUNDS, **COLOURS}
    return list(named), np.array(list(named.values()), np.float32)


@lru_cache(maxsize=1)
def _masks() -> list[Bools]:
    """A mask for each of SHAPES that fills its box."""
    return [_mask(shape) for shape in SHAPES]


def _mask(shape: str) -> Bools:
    side = 8 * _MASK_PX - 1
    image = Image.new("L", (side + 1, side + 1))
    pen = ImageDraw.Draw(image)
    match shape:
        case "circle":
            pen.ellipse((0, 0, side, side), fill=255)
        case "ring":
            pen.ellipse((0, 0, side, side), fill=255)
            pen.ellipse((side / 4, side / 4, 3 * side / 4, 3 * side / 4), fill=0)
        case "square":
            pen.rectangle((0, 0, side, side), fill=255)
        case "triangle":
            pen.polygon([(side / 2, 0), (side, side), (0, side)], fill=255)
        case "cross":
            pen.rectangle((0, 0.33 * side, side, 0.67 * side), fill=255)
            pen.rectangle((0.33 * side, 0, 0.67 * side, side), fill=255)
    return np.asarray(image.resize((_MASK_PX, _MASK_PX), Image.Resampling.BOX)) >= 128
