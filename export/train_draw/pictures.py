"""Pictures and latents of drawings as arrays on disk, made once; a missing file is made first.

H, W sides in px; h, w sides in latents (8 px each); Z latent channels. Every size has files of its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.progress import track

from export.world.draw import draw
from export.world.scene import WORLD_VERSION, Scene, Split
from export.world.wish import drawing

SHARD = 4_000  # pictures a file
UNSEEN_SEED = 10_000_000  # scenes of `train` from here on are never trained on
Sizes = tuple[tuple[int, int], ...]
SIZES: Sizes = ((64, 64), (96, 64), (64, 96), (96, 96))  # width, height

Array = NDArray[np.generic]


def scenes(split: Split, size: tuple[int, int], seeds: range) -> list[Scene]:
    """Drawings of these seeds, `size` = (width, height) px. A seed is another drawing in each size."""
    width_px, height_px = size
    offset = SIZES.index(size) * 1_000_000
    return [drawing(split, offset + seed, width_px=width_px, height_px=height_px) for seed in seeds]


def pictures(folder: Path, size: tuple[int, int], count: int) -> NDArray[np.uint8]:
    """(count, H, W, 3) of seeds 0..count-1 of `train`, from shards under `folder`."""

    def make(shard: int) -> Array:
        seeds = range(shard * SHARD, (shard + 1) * SHARD)
        return np.stack([np.asarray(draw(scene)) for scene in scenes("train", size, seeds)])

    return _shards(folder, f"pictures{WORLD_VERSION}-{size[0]}x{size[1]}", count, make).astype(np.uint8, copy=False)


def latents(
    folder: Path, name: str, size: tuple[int, int], count: int, encode: Callable[[NDArray[np.uint8]], Array]
) -> NDArray[np.float16]:
    """(count, Z, h, w) of the same pictures, by the autoencoder that `name` names."""

    def make(shard: int) -> Array:
        every = pictures(folder, size, (shard + 1) * SHARD)
        return encode(every[shard * SHARD :]).astype(np.float16)

    return _shards(folder, f"latents-{name}-{size[0]}x{size[1]}", count, make).astype(np.float16, copy=False)


def _shards(folder: Path, name: str, count: int, make: Callable[[int], Array]) -> Array:
    folder.mkdir(parents=True, exist_ok=True)
    shards = range(-(-count // SHARD))
    paths = [folder / f"{name}-{shard}.npy" for shard in shards]
    missing = [shard for shard in shards if not paths[shard].exists()]
    for shard in track(missing, description=name, disable=not missing):
        partial = paths[shard].with_suffix(f".{os.getpid()}.partial.npy")
        np.save(partial, make(shard), allow_pickle=False)
        partial.replace(paths[shard])
    return np.concatenate([np.load(path) for path in paths])[:count]
