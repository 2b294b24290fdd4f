"""Sizes of a vision transformer over square patches, as its config states them, and the operations it takes."""

from __future__ import annotations

from dataclasses import dataclass

from proteus.families.checkpoint import ConfigTable
from proteus.families.flops import layer, linear

RGB = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionTower:
    patch_px: int
    width: int  # of a row: hidden_size
    feed_forward: int
    layers: int

    def patches(self, height_px: int, width_px: int) -> int:
        """Patches that fit into a picture; a rest at the edge is dropped, as the convolution does."""
        return (height_px // self.patch_px) * (width_px // self.patch_px)

    def flops(self, patches: int, *, class_tokens: int = 0, layers: int | None = None) -> int:
        """Operations for one picture of `patches`: embedding, then `layers` (all) over the patches and class tokens."""
        rows = patches + class_tokens
        embedding = linear(patches, RGB * self.patch_px**2, self.width)
        return embedding + (self.layers if layers is None else layers) * layer(
            rows, rows, self.width, self.feed_forward
        )


def read_vision_tower(table: ConfigTable, defaults: VisionTower) -> VisionTower:
    """From a vision config; absent keys take `defaults`. Raises UnsupportedCheckpoint naming the key."""
    height_px, width_px = table.sides_px("patch_size", defaults.patch_px)
    if height_px != width_px:
        raise table.wrong("patch_size", [height_px, width_px], "square patches")
    table.one_of("num_channels", (RGB,), RGB)
    return VisionTower(
        patch_px=height_px,
        width=table.positive("hidden_size", defaults.width),
        feed_forward=table.positive("intermediate_size", defaults.feed_forward),
        layers=table.positive("num_hidden_layers", defaults.layers),
    )


def read_square_px(table: ConfigTable, key: str, default: int | None = None) -> int:
    """One side of a square size; raises UnsupportedCheckpoint for sides that differ."""
    height_px, width_px = table.sides_px(key, default)
    if height_px != width_px:
        raise table.wrong(key, [height_px, width_px], "equal sides")
    return height_px
