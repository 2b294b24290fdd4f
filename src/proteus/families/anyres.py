"""How LLaVA-NeXT and LLaVA-OneVision cut a picture into tiles and which features they keep ("anyres").

A picture is fitted into the pinpoint (a published size of whole tiles) that keeps most of its pixels, padded to it and
cut; features of the padding are dropped again. Liu et al. 2024, "LLaVA-NeXT"; transformers' LlavaNextProcessor, whose
rounding to seven digits decides on the edge of a patch.
"""

from __future__ import annotations

from dataclasses import dataclass

from proteus.families.checkpoint import ConfigTable

Pinpoints = tuple[tuple[int, int], ...]  # (height, width) in px


@dataclass(frozen=True, slots=True)
class Kept:
    """Rows and columns of features that are left without the padding."""

    rows: int
    cols: int


def best_pinpoint(width_px: int, height_px: int, pinpoints: Pinpoints) -> tuple[int, int]:
    """(height, width) of the pinpoint that holds most pixels of the picture and wastes the fewest; first of equals."""

    def rank(pinpoint: tuple[int, int]) -> tuple[int, int]:
        scale = min(pinpoint[1] / width_px, pinpoint[0] / height_px)
        held = min(int(width_px * scale) * int(height_px * scale), width_px * height_px)
        return -held, pinpoint[0] * pinpoint[1] - held

    return min(pinpoints, key=rank)


def kept_features(width_px: int, height_px: int, rows: int, cols: int) -> Kept:
    """What is left of `rows` x `cols` features of the padded picture once the padding is cut off, in pairs of lines."""
    if width_px / height_px > cols / rows:
        height = int(round(height_px * (cols / width_px), 7))
        return Kept(rows - (rows - height) // 2 * 2, cols)
    width = int(round(width_px * (rows / height_px), 7))
    return Kept(rows, cols - (cols - width) // 2 * 2)


def read_pinpoints(config: ConfigTable, processor: ConfigTable, default: Pinpoints, tile_px: int) -> Pinpoints:
    """The pinpoints of config and processor, which must agree and be whole tiles; raises UnsupportedCheckpoint."""
    used = _pinpoints(config, default, tile_px)
    if _pinpoints(processor, default, tile_px) != used:
        limit = f"those of {config.name}: {str(used)[:80]}"
        raise processor.wrong("image_grid_pinpoints", processor.get("image_grid_pinpoints"), limit)
    return used


def _pinpoints(table: ConfigTable, default: Pinpoints, tile_px: int) -> Pinpoints:
    values = table.get("image_grid_pinpoints", [list(pinpoint) for pinpoint in default])
    limit = f"pairs of height and width, multiples of {tile_px}"
    if not isinstance(values, list) or not values:
        raise table.wrong("image_grid_pinpoints", values, limit)
    pinpoints = []
    for value in values:
        height_px, width_px = ConfigTable(table.name, {"image_grid_pinpoints": value}, table.prefix).sides_px(
            "image_grid_pinpoints"
        )
        if height_px % tile_px or width_px % tile_px:
            raise table.wrong("image_grid_pinpoints", value, limit)
        pinpoints.append((height_px, width_px))
    return tuple(pinpoints)
