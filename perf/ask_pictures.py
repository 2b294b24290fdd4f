"""Held-out scenes as the picture files that are asked about: any size and format, whole or in parts."""

from __future__ import annotations

import dataclasses
import io
from functools import lru_cache

from PIL import Image

from export.world.draw import draw
from export.world.held_out import Item
from export.world.scene import Scene
from perf.ask_scores import QUARTERS, View, Way

JPEG_QUALITY = 90


def files(item: Item, way: Way) -> list[bytes]:
    """Of each scene, of each view."""
    return [file(scene, view, way.side_px, way.format) for scene in item.scenes for view in way.views]


@lru_cache(maxsize=2048)
def file(scene: Scene, view: View, side_px: int, format_name: str) -> bytes:
    """An encoded picture, `side_px` squared. A part of a scene is drawn twice as large: it shows a quarter."""
    if view == "whole":
        picture = drawn(scene, side_px)
    else:
        left, top = corner(scene, view, side_px)
        picture = drawn(scene, 2 * side_px).crop((left, top, left + side_px, top + side_px))
    encoded = io.BytesIO()
    picture.save(encoded, format_name, quality=JPEG_QUALITY)
    return encoded.getvalue()


def drawn(scene: Scene, side_px: int) -> Image.Image:
    """The scene at another size than its own: edges are as sharp, lines of charts as thin as at any other."""
    return draw(dataclasses.replace(scene, width_px=side_px, height_px=side_px))


def corner(scene: Scene, view: View, side_px: int) -> tuple[int, int]:
    """(left, top) px of a quarter in a picture of twice `side_px`."""
    if view != "around":
        row, column = divmod(QUARTERS.index(view), 2)
        return column * side_px, row * side_px
    row, column = divmod(next(shape.cell for shape in scene.shapes if shape.small), 3)
    # The small shape's cell in the middle, as far as the picture's edges allow: thirds of the picture, less a quarter.
    left, top = ((2 * index + 1) * side_px / 3 - side_px / 2 for index in (column, row))
    return round(min(max(left, 0), side_px)), round(min(max(top, 0), side_px))
