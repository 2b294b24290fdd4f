"""Pixels to the bytes of a picture file that carries its own settings, and the settings back out of one."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

from PIL import ExifTags, Image
from PIL.PngImagePlugin import PngInfo

from proteus.errors import InvalidPicture, InvalidRequest
from proteus.generation.preview import Pixels
from proteus.limits import DrawnFormat

NAME = "proteus"  # of the text chunk of a PNG
MAX_EXIF_BYTES = 65_000  # a JPEG holds them in one segment, whose length is of 16 bits


def encode(pixels: Pixels, kind: DrawnFormat, *, quality: int, settings: Mapping[str, Any] | None = None) -> bytes:
    """Pixels (H, W, 3) as a file; `quality`, 1 to 100, is of JPEG and WebP.

    `settings` are JSON in the text chunk "proteus" of a PNG, in ImageDescription of the others. Raises InvalidRequest
    where a JPEG cannot hold them.
    """
    image, file = Image.fromarray(pixels), io.BytesIO()
    text = None if settings is None else carried(kind, settings)
    if kind == "png":
        image.save(file, "PNG", **_chunk(text))
    elif kind == "jpeg":
        image.save(file, "JPEG", quality=quality, subsampling=0, **_description(text))
    else:
        image.save(file, "WEBP", quality=quality, **_description(text))
    return file.getvalue()


def carried(kind: DrawnFormat, settings: Mapping[str, Any]) -> str:
    """The JSON that a file of that kind carries; raises InvalidRequest where a JPEG cannot hold it."""
    text = json.dumps(settings, separators=(",", ":"))  # characters beyond ASCII are escaped: EXIF knows no others
    if kind == "jpeg" and len(text) > MAX_EXIF_BYTES:
        raise InvalidRequest(
            f"prompt and settings take {len(text):,} bytes in a JPEG",
            limit=f"{MAX_EXIF_BYTES:,}, of one EXIF segment",
            fix="shorten the prompt or ask for png",
        )
    return text


def settings_of(file: bytes) -> dict[str, Any]:
    """What `encode` was given; raises InvalidPicture where a file carries none."""
    try:
        with Image.open(io.BytesIO(file), formats=("PNG", "JPEG", "WEBP")) as image:
            text = image.info.get(NAME) or image.getexif().get(ExifTags.Base.ImageDescription)
        settings = json.loads(text or "")
    except (OSError, ValueError, RecursionError, Image.DecompressionBombError) as error:
        raise InvalidPicture(
            "the file carries no settings of a drawn picture", fix="give a file as `draw` made it"
        ) from error
    if not isinstance(settings, dict):
        raise InvalidPicture("the file's description is not of a drawn picture", fix="give a file as `draw` made it")
    return settings


def _chunk(text: str | None) -> dict[str, PngInfo]:
    if text is None:
        return {}
    chunks = PngInfo()
    chunks.add_itxt(NAME, text)
    return {"pnginfo": chunks}


def _description(text: str | None) -> dict[str, Image.Exif]:
    if text is None:
        return {}
    exif = Image.Exif()
    exif[ExifTags.Base.ImageDescription] = text
    return {"exif": exif}
