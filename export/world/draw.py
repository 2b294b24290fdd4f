"""Scene → picture. Everything is drawn at twice the size and averaged down, so that edges are smooth at 32 px too."""

from __future__ import annotations

import math

from PIL import Image, ImageDraw, ImageFont

from export.world.scene import BACKGROUNDS, COLOURS, MAX_VALUE, Bar, Number, Scene, Shape

_SCALE = 2
_CHART_BASE, _CHART_UNIT = 0.94, 0.16  # of the height: where bars stand, and what a value of one measures


def draw(scene: Scene) -> Image.Image:
    """The RGB picture of `scene`, `width_px` x `height_px`."""
    size = (scene.width_px * _SCALE, scene.height_px * _SCALE)
    picture = Image.new("RGB", size, BACKGROUNDS[scene.background])
    pen = ImageDraw.Draw(picture)
    ink = (245, 245, 245) if scene.background == "black" else (0, 0, 0)
    if scene.bars:
        _draw_chart(pen, size, scene.bars, ink)
    for shape in scene.shapes:
        _draw_shape(pen, size, shape, BACKGROUNDS[scene.background])
    if scene.number:
        _draw_number(pen, size, scene.number, ink)
    return picture.reduce(_SCALE)


def _draw_shape(
    pen: ImageDraw.ImageDraw, size: tuple[int, int], shape: Shape, background: tuple[int, int, int]
) -> None:
    half_w, half_h = size[0] / 6, size[1] / 6
    row, column = divmod(shape.cell, 3)
    x = (2 * column + 1 + shape.shift[0]) * half_w
    y = (2 * row + 1 + shape.shift[1]) * half_h
    r = shape.radius * min(half_w, half_h)
    fill = COLOURS[shape.colour]
    box = (x - r, y - r, x + r, y + r)
    match shape.shape:
        case "circle":
            pen.ellipse(box, fill=fill)
        case "ring":
            pen.ellipse(box, fill=fill)
            pen.ellipse((x - r / 2, y - r / 2, x + r / 2, y + r / 2), fill=background)
        case "square":
            pen.rectangle((x - 0.88 * r, y - 0.88 * r, x + 0.88 * r, y + 0.88 * r), fill=fill)
        case "triangle":
            pen.polygon([(x, y - r), (x + r, y + 0.85 * r), (x - r, y + 0.85 * r)], fill=fill)
        case "cross":
            pen.rectangle((x - r, y - 0.34 * r, x + r, y + 0.34 * r), fill=fill)
            pen.rectangle((x - 0.34 * r, y - r, x + 0.34 * r, y + r), fill=fill)


def _draw_number(pen: ImageDraw.ImageDraw, size: tuple[int, int], number: Number, ink: tuple[int, int, int]) -> None:
    cell_w, cell_h = size[0] / 6, size[1] / 3
    font = ImageFont.load_default(math.floor(min(cell_h * 0.85, cell_w * 1.6)))
    y = (number.row + 0.5 + number.shift[1] * 0.5) * cell_h
    for index, digit in enumerate(number.digits):
        x = (number.column + index + 0.5 + number.shift[0]) * cell_w
        pen.text((x, y), digit, font=font, fill=ink, anchor="mm")


def _draw_chart(
    pen: ImageDraw.ImageDraw, size: tuple[int, int], bars: tuple[Bar, ...], ink: tuple[int, int, int]
) -> None:
    width, height = size
    base = _CHART_BASE * height
    for value in range(1, MAX_VALUE + 1):
        y = base - value * _CHART_UNIT * height
        pen.line((0, y, width, y), fill=(160, 160, 160), width=_SCALE)
    for index, bar in enumerate(bars):
        middle, half = (index + 0.5) * width / 3, bar.width * width / 6
        top = base - bar.value * _CHART_UNIT * height
        pen.rectangle((middle - half, top, middle + half, base), fill=COLOURS[bar.colour])
    pen.line((0, base, width, base), fill=ink, width=2 * _SCALE)
