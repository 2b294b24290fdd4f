"""Noise of a picture from (seed, image index, step) alone, whatever batch or order it is drawn in.

Words of Philox 4x64, which numpy keeps as they are in every version, turned into normal numbers here.
"""

from __future__ import annotations

import math

import numpy as np

from proteus.generation.task import Floats

INITIAL = 0  # step of the noise that a picture starts from; noise added after step k is k's


def noise(seed: int, image_index: int, step: int, shape: tuple[int, ...]) -> Floats:
    """Independent standard normal numbers. All three of the key below 2**64; a larger shape begins as a smaller one."""
    pairs = -(-math.prod(shape) // 2)
    words = np.random.Philox(key=[seed, image_index], counter=[0, step, 0, 0]).random_raw(2 * pairs)
    halves = (words >> np.uint64(11)).astype(np.float64).reshape(pairs, 2) * 2.0**-53
    # Box and Muller: a radius and an angle make two of them.
    radius = np.sqrt(-2.0 * np.log(halves[:, 0] + 2.0**-53))
    angle = 2.0 * np.pi * halves[:, 1]
    normal: Floats = np.stack((radius * np.cos(angle), radius * np.sin(angle)), axis=1).astype(np.float32)
    return normal.reshape(-1)[: math.prod(shape)].reshape(shape)
