"""Lets processors of transformers work on pictures that have a size and no pixels: thousands are judged in seconds.

Pictures are tensors on torch's `meta` device. Every decision stays transformers' code; only `torchvision`'s resize is
answered with the shape it was asked for, because tracing its arithmetic takes longer than everything else.
"""

from __future__ import annotations

from typing import Any


def picture(width_px: int, height_px: int) -> Any:
    """An RGB picture without pixels."""
    import torch

    return torch.empty(3, height_px, width_px, device="meta", dtype=torch.uint8)


def blank(width_px: int, height_px: int) -> Any:
    """A white picture with pixels, as people hand it over."""
    from PIL import Image

    return Image.new("RGB", (width_px, height_px), "white")


def make_resize_weightless() -> None:
    """Answer `resize` of a tensor without pixels with its shape; others, and empty ones, go on to torchvision."""
    import torch
    from torchvision.transforms.v2 import functional

    real = functional.resize
    if getattr(real, "weightless", False):
        return

    def resize(image: Any, size: Any, *arguments: Any, **options: Any) -> Any:
        if getattr(image, "device", None) != torch.device("meta") or 0 in image.shape:
            return real(image, size, *arguments, **options)
        if min(size) < 1:
            raise ValueError(f"size {size}")
        return image.new_empty(*image.shape[:-2], *size)

    resize.weightless = True  # type: ignore[attr-defined]
    functional.resize = resize
