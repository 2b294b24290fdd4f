"""Greys of more than 8 bits to 8 bits, by a rule that the whole picture decides once.

- 16 and 12 bits keep their highest eight.
- 32-bit integers have no agreed white: below 256 they are taken for 8 bits, below 65,536 for 16 bits, else the largest
  value of the picture is shifted into one byte, and all others with it. Negative values are black.
- Floats: white is 1 where no value is above 1, else 255, else 65,535, else the largest finite value. NaN is black.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

Grey = npt.NDArray[np.uint8]
ToByte = Callable[[npt.NDArray[Any]], Grey]

DEEP_MODES = ("I;16", "I;16L", "I;16B", "I;16N", "I", "F")
WHITES = (1.0, 255.0, 65535.0)
BITS_PER_SAMPLE, PHOTOMETRIC, SAMPLE_FORMAT = 258, 262, 339  # tags of TIFF 6.0
WHITE_IS_ZERO, UNSIGNED = 0, 1


def to_byte(picture: Image.Image, strips: Callable[[], Iterator[Image.Image]]) -> ToByte:
    """What makes bytes of the values of any part of `picture`, which is of one of DEEP_MODES."""
    tags = getattr(picture, "tag_v2", {})
    inverted = tags.get(PHOTOMETRIC) == WHITE_IS_ZERO
    if picture.mode == "F":
        grey = _floats(max(_largest(np.asarray(strip)) for strip in strips()))
    elif picture.mode == "I":
        unsigned = UNSIGNED in tags.get(SAMPLE_FORMAT, (UNSIGNED,)) and 32 in tags.get(BITS_PER_SAMPLE, ())
        grey = _integers(np.uint32 if unsigned else np.int32, strips)
    else:
        grey = _high_byte(12 if 12 in tags.get(BITS_PER_SAMPLE, ()) else 16)
    return (lambda values: np.invert(grey(values))) if inverted else grey


def _high_byte(bits: int) -> ToByte:
    def grey(values: npt.NDArray[Any]) -> Grey:
        high: Grey = (values >> (bits - 8)).astype(np.uint8)
        return high

    return grey


def _integers(kind: type[np.uint32 | np.int32], strips: Callable[[], Iterator[Image.Image]]) -> ToByte:
    largest = max(int(np.asarray(strip).view(kind).max()) for strip in strips())
    bits = 8 if largest < 1 << 8 else 16 if largest < 1 << 16 else largest.bit_length()

    def grey(values: npt.NDArray[Any]) -> Grey:
        high: Grey = (values.view(kind).clip(0) >> (bits - 8)).astype(np.uint8)
        return high

    return grey


def _floats(largest: float) -> ToByte:
    white = next((white for white in WHITES if largest <= white), largest)

    def grey(values: npt.NDArray[Any]) -> Grey:
        share = np.nan_to_num(values, nan=0.0, posinf=white, neginf=0.0).clip(0, white) / np.float32(white)
        level: Grey = np.rint(share * 255).astype(np.uint8)
        return level

    return grey


def _largest(values: npt.NDArray[Any]) -> float:
    return float(np.max(values, where=np.isfinite(values), initial=0.0))
