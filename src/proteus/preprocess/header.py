"""Format and size of a picture from its first bytes, and the limits on them; no pixel is decoded here.

The format comes from the content, never from a name. Pillow's own check of decompression bombs sits in `Image.open`;
the plugins are opened directly so that our limit decides, with its own text.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from PIL import ImageFile
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from proteus.errors import InvalidPicture, MediaTooLarge
from proteus.limits import ImageLimits, PictureFormat

OPENERS: Mapping[PictureFormat, Callable[[io.BytesIO], ImageFile.ImageFile]] = {
    "png": PngImageFile,
    "jpeg": JpegImageFile,
    "webp": WebPImageFile,
    "gif": GifImageFile,
    "bmp": BmpImageFile,
}
# (offset, bytes, format): what a file of the format holds there; the names without an opener only make errors clear.
SIGNATURES: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\x89PNG\r\n\x1a\n", "png"),
    (0, b"\xff\xd8\xff", "jpeg"),
    (8, b"WEBP", "webp"),
    (0, b"GIF87a", "gif"),
    (0, b"GIF89a", "gif"),
    (0, b"BM", "bmp"),
    (4, b"ftypavif", "avif"),
    (4, b"ftypavis", "avif"),
    (4, b"ftyphei", "heic"),
    (4, b"ftyphev", "heic"),
    (4, b"ftypmif1", "heic"),
    (4, b"ftyp", "mp4"),
    (0, b"II*\x00", "tiff"),
    (0, b"MM\x00*", "tiff"),
    (0, b"%PDF", "pdf"),
    (0, b"<svg", "svg"),
    (0, b"\xff\x0a", "jpeg xl"),
    (0, b"\x00\x00\x00\x0cJXL ", "jpeg xl"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureHeader:
    """Facts read without decoding; sides as stored, before any EXIF rotation."""

    format: PictureFormat
    width_px: int
    height_px: int


def sniff(data: bytes) -> str | None:
    """Name of the format whose signature `data` starts with, known to us or not; None when it is none of them."""
    return next((name for offset, magic, name in SIGNATURES if data[offset : offset + len(magic)] == magic), None)


def read_header(data: bytes, limits: ImageLimits) -> PictureHeader:
    """Check one picture against `limits`; raises InvalidPicture or MediaTooLarge naming value, limit and fix."""
    return open_picture(data, limits)[0]


def open_picture(data: bytes, limits: ImageLimits) -> tuple[PictureHeader, ImageFile.ImageFile]:
    """As `read_header`, with the opened, undecoded file."""
    if not data:
        raise InvalidPicture("the picture is empty (0 bytes)", fix="send the bytes of a picture file")
    if len(data) > limits.max_bytes:
        raise MediaTooLarge(
            f"the picture has {len(data):,} bytes",
            limit=f"[image] max_bytes = {limits.max_bytes:,}",
            fix="send a smaller or more compressed picture",
        )
    picture_format = _allowed(sniff(data), limits.formats)
    try:
        picture = OPENERS[picture_format](io.BytesIO(data))
    except Exception as error:  # Pillow's plugins raise anything at all on malformed bytes
        raise broken(picture_format) from error
    width_px, height_px = picture.size
    _check_size(width_px, height_px, limits)
    return PictureHeader(format=picture_format, width_px=width_px, height_px=height_px), picture


def broken(picture_format: PictureFormat) -> InvalidPicture:
    """The error for bytes that start as a picture and go wrong later."""
    return InvalidPicture(
        f"the picture starts as {picture_format} but is truncated or damaged", fix="send the whole, intact file"
    )


def _allowed(name: str | None, formats: Sequence[PictureFormat]) -> PictureFormat:
    for known in formats:
        if name == known:
            return known
    what = f"a picture of format {name}" if name is not None else "bytes that are no known picture"
    limit = f"[image] formats = {', '.join(formats)}"
    raise InvalidPicture(what, limit=limit, fix="convert the picture to one of these formats")


def _check_size(width_px: int, height_px: int, limits: ImageLimits) -> None:
    what = f"the picture is {width_px}x{height_px} px"
    short_px, long_px = sorted((width_px, height_px))
    if short_px < limits.min_side_px:
        raise InvalidPicture(what, limit=f"[image] min_side_px = {limits.min_side_px}", fix="send a larger picture")
    if long_px > limits.max_side_px:
        raise MediaTooLarge(what, limit=f"[image] max_side_px = {limits.max_side_px:,}", fix="send a smaller picture")
    if width_px * height_px > limits.max_pixels:
        raise MediaTooLarge(
            f"{what} = {width_px * height_px:,} px",
            limit=f"[image] max_pixels = {limits.max_pixels:,}",
            fix="send a smaller picture",
        )
    if long_px > limits.max_aspect_ratio * short_px:
        raise InvalidPicture(
            what, limit=f"[image] max_aspect_ratio = {limits.max_aspect_ratio:g}", fix="crop the picture"
        )
