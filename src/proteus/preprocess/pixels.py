"""RGB to the encoder's `pixel_values`, equal to the PIL backend of transformers' CLIPImageProcessor.

Each step keeps that class's order and precision: resize on 8 bits, rescale in float64, normalise in float32.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from PIL import Image

from proteus.families.llava import ResizeRule

POLICY = "clip-pil-2"  # enters the cache key: change it when any value below may change


def to_pixel_values(rgb: npt.NDArray[np.uint8], rule: ResizeRule) -> npt.NDArray[np.float32]:
    """(height, width, 3) -> (3, S, S)."""
    pixels = np.moveaxis(_crop(_resize(rgb, rule), rule), -1, 0)
    values = pixels.astype(np.float32)
    if rule.rescale_factor is not None:
        values = (pixels.astype(np.float64) * rule.rescale_factor).astype(np.float32)
    if rule.mean is not None and rule.std is not None:
        values = (values - _per_channel(rule.mean)) / _per_channel(rule.std)
    return np.ascontiguousarray(values)


def resized_px(height_px: int, width_px: int, rule: ResizeRule) -> tuple[int, int]:
    """Height and width after the resize step."""
    if rule.size_px is not None:
        return rule.size_px
    if rule.shortest_edge_px is None:
        return height_px, width_px
    short_px, long_px = sorted((height_px, width_px))
    new_long_px = int(rule.shortest_edge_px * long_px / short_px)
    if width_px <= height_px:
        return new_long_px, rule.shortest_edge_px
    return rule.shortest_edge_px, new_long_px


def _resize(rgb: npt.NDArray[np.uint8], rule: ResizeRule) -> npt.NDArray[np.uint8]:
    if rule.size_px is None and rule.shortest_edge_px is None:
        return rgb
    height_px, width_px = resized_px(rgb.shape[0], rgb.shape[1], rule)
    resample = Image.Resampling(rule.resample)
    return np.asarray(Image.fromarray(rgb).resize((width_px, height_px), resample=resample))


def _crop(rgb: npt.NDArray[np.uint8], rule: ResizeRule) -> npt.NDArray[np.uint8]:
    """Cut the centre out; where the picture is smaller, black is added around it first."""
    if rule.crop_px is None:
        return rgb
    shape_px = (rgb.shape[0], rgb.shape[1])
    spans = [_centre(side_px, crop_px) for side_px, crop_px in zip(shape_px, rule.crop_px, strict=True)]
    if any(side_px < crop_px for side_px, crop_px in zip(shape_px, rule.crop_px, strict=True)):
        padding = [_padding(side_px, crop_px) for side_px, crop_px in zip(shape_px, rule.crop_px, strict=True)]
        rgb = np.pad(rgb, (*padding, (0, 0)))
        spans = [(start + before, stop + before) for (start, stop), (before, _) in zip(spans, padding, strict=True)]
    (top, bottom), (left, right) = spans
    return rgb[max(0, top) : bottom, max(0, left) : right]


def _centre(side_px: int, crop_px: int) -> tuple[int, int]:
    start = (side_px - crop_px) // 2
    return start, start + crop_px


def _padding(side_px: int, crop_px: int) -> tuple[int, int]:
    missing_px = max(crop_px - side_px, 0)
    before = -(-missing_px // 2)
    return before, missing_px - before


def _per_channel(values: tuple[float, float, float]) -> npt.NDArray[np.float32]:
    return np.array(values, dtype=np.float32)[:, None, None]
