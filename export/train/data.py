"""Pictures and dense labels of the drawn world as arrays on disk, made once and grown when more are asked for.

P side of a picture in px, G patches a side. A picture is what the image processor gives: resized to P x P, 8 bits.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from rich.progress import track

from export.world.draw import draw
from export.world.scene import BACKGROUNDS, COLOURS, MAX_VALUE, SHAPES, WORLD_VERSION, Scene, Split, scene

PICTURE_PX, PATCH_PX = 96, 16
GRID = PICTURE_PX // PATCH_PX
SHARD = 5_000  # pictures a file

# What each patch is asked for in dense training; class 0 is "nothing here".
DENSE = {
    "shape": 1 + len(SHAPES),
    "colour": len(BACKGROUNDS) + len(COLOURS),
    "digit": 1 + 10,
    "value": 1 + MAX_VALUE,
    "small": 2,
}

UInt8s = NDArray[np.uint8]


def pixels(scene_: Scene) -> UInt8s:
    """(P, P, 3): the scene drawn, then resized as the checkpoint's image processor does."""
    return np.asarray(draw(scene_).resize((PICTURE_PX, PICTURE_PX), Image.Resampling.BICUBIC))


def dense_labels(scene_: Scene) -> UInt8s:
    """(G, G, 5) in the order of DENSE: what stands in the cell, the digit column or the bar column of each patch."""
    labels = np.zeros((GRID, GRID, len(DENSE)), np.uint8)
    labels[..., 1] = list(BACKGROUNDS).index(scene_.background)
    cell = GRID // 3
    colours = list(COLOURS)
    for shape in scene_.shapes:
        row, column = divmod(shape.cell, 3)
        area = labels[row * cell : (row + 1) * cell, column * cell : (column + 1) * cell]
        area[..., 0] = 1 + SHAPES.index(shape.shape)
        area[..., 1] = len(BACKGROUNDS) + colours.index(shape.colour)
        area[..., 4] = shape.small
    if scene_.number:
        rows = slice(scene_.number.row * cell, (scene_.number.row + 1) * cell)
        for index, digit in enumerate(scene_.number.digits):
            labels[rows, scene_.number.column + index, 2] = 1 + int(digit)
    for index, bar in enumerate(scene_.bars):
        area = labels[:, index * cell : (index + 1) * cell]
        area[..., 1] = len(BACKGROUNDS) + colours.index(bar.colour)
        area[..., 3] = bar.value
    return labels


class Pictures:
    """Pictures of seeds 0..count-1 of a split, from shards under `folder`; a missing shard is drawn first."""

    def __init__(self, folder: Path, split: Split, count: int) -> None:
        self._pixels, self._labels = [], []
        folder.mkdir(parents=True, exist_ok=True)
        shards = range((count + SHARD - 1) // SHARD)
        paths = [folder / f"world{WORLD_VERSION}-{split}-{PICTURE_PX}px-{index}" for index in shards]
        missing = [index for index in shards if not paths[index].with_suffix(".labels.npy").exists()]
        for index in track(missing, description=f"drawing {split} pictures", disable=not missing):
            _draw_shard(paths[index], split, index)
        for path in paths:
            self._pixels.append(np.load(path.with_suffix(".pixels.npy")))
            self._labels.append(np.load(path.with_suffix(".labels.npy")))
        self.split, self.count = split, count

    def pixels(self, seeds: NDArray[np.int64]) -> UInt8s:
        """(B, P, P, 3)"""
        return np.stack([self._pixels[seed // SHARD][seed % SHARD] for seed in seeds])

    def labels(self, seeds: NDArray[np.int64]) -> UInt8s:
        """(B, G, G, 5)"""
        return np.stack([self._labels[seed // SHARD][seed % SHARD] for seed in seeds])


def _draw_shard(path: Path, split: Split, index: int) -> None:
    scenes = [scene(split, seed) for seed in range(index * SHARD, (index + 1) * SHARD)]
    for suffix, array in (
        (".pixels.npy", np.stack([pixels(scene_) for scene_ in scenes])),
        (".labels.npy", np.stack([dense_labels(scene_) for scene_ in scenes])),  # last: its presence means "whole"
    ):
        partial = path.with_suffix(f".{os.getpid()}.partial.npy")
        np.save(partial, array, allow_pickle=False)
        partial.replace(path.with_suffix(suffix))
