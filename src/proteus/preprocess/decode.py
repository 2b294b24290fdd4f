"""One encoded picture to upright RGB; transparency is composited over white, as a viewer on a page would show it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from proteus.limits import ImageLimits
from proteus.preprocess.header import broken, open_picture

WHITE = (255, 255, 255, 255)


def decode(data: bytes, limits: ImageLimits) -> npt.NDArray[np.uint8]:
    """Pixels (height, width, 3) of the first frame, EXIF orientation applied.

    Raises InvalidPicture or MediaTooLarge; over a limit, before any pixel is decoded.
    """
    header, picture = open_picture(data, limits)
    try:
        picture.load()
        return np.asarray(_to_rgb(ImageOps.exif_transpose(picture)))
    except Exception as error:  # Pillow's decoders raise anything at all on malformed bytes
        raise broken(header.format) from error


def _to_rgb(picture: Image.Image) -> Image.Image:
    if picture.mode.startswith("I"):
        return _from_16_bit(picture)
    if not picture.has_transparency_data:
        return picture.convert("RGB")
    layer = picture.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", layer.size, WHITE), layer).convert("RGB")


def _from_16_bit(picture: Image.Image) -> Image.Image:
    """Greys of 16 bits keep their high byte; Pillow's own conversion cuts everything above 255 to white."""
    grey = np.asarray(picture)
    high = (grey >> 8).clip(0, 255).astype(np.uint8)
    transparent = picture.info.get("transparency")
    if isinstance(transparent, int):
        high[grey == transparent] = 255
    return Image.fromarray(high).convert("RGB")
