"""A format that the content showed -> the one decoder that may read it. Nothing is guessed, nothing is registered.

Pillow's `Image.open` tries its plugins by turns and has a limit of its own on pixels; here the format is known from the
header, and our limit has been checked before.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterator, Mapping

import pillow_heif
from PIL import AvifImagePlugin, ImageFile
from PIL.AvifImagePlugin import AvifImageFile
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile
from pillow_heif.as_plugin import HeifImageFile

from proteus.media.header import PictureFormat

Opener = Callable[[bytes], ImageFile.ImageFile]

UPRIGHT_WHEN_LOADED = frozenset({"heic", "tiff"})  # these two turn the pixels themselves
PNG_SIGNATURE_BYTES = 8
PNG_DEPTH_AT = 24
CHECKED_CHUNKS = (b"IHDR", b"PLTE", b"IDAT")


def keep_decoders_small() -> None:
    """For this whole process: HEIC and AVIF in one thread, as each takes address space; no pictures beside the main."""
    pillow_heif.options.DECODE_THREADS = 1
    pillow_heif.options.THUMBNAILS = False
    pillow_heif.options.DEPTH_IMAGES = False
    pillow_heif.options.AUX_IMAGES = False
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1


def _open_png(data: bytes) -> ImageFile.ImageFile:
    """The transparent colour in the scale of the pixels; a chunk that is missing or damaged is an error."""
    _check_chunks(data)
    picture = PngImageFile(io.BytesIO(data))
    key, depth = picture.info.get("transparency"), data[PNG_DEPTH_AT]
    if picture.mode == "L" and depth < 8:
        picture.info["transparency"] = None if key is None else key * 255 // (2**depth - 1)
    elif picture.mode == "RGB" and depth == 16 and key is not None:
        picture.info["transparency"] = tuple(value >> 8 for value in key)
    return picture


def _check_chunks(data: bytes) -> None:
    view, kind = memoryview(data), b""
    for kind, start, end in _png_chunks(data):
        stored = int.from_bytes(data[end : end + 4], "big")
        if kind in CHECKED_CHUNKS and zlib.crc32(view[start - 4 : end]) != stored:
            raise ValueError("a chunk differs from its checksum")
    if kind != b"IEND":
        raise ValueError("the last chunk is missing")


def _png_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """(type, start, end of content) up to IEND."""
    at, kind = PNG_SIGNATURE_BYTES, b""
    while at + 12 <= len(data) and kind != b"IEND":
        kind = data[at + 4 : at + 8]
        end = at + 8 + int.from_bytes(data[at : at + 4], "big")
        yield kind, at + 8, end
        at = end + 4


def _of(plugin: Callable[[io.BytesIO], ImageFile.ImageFile]) -> Opener:
    return lambda data: plugin(io.BytesIO(data))


OPENERS: Mapping[PictureFormat, Opener] = {
    "png": _open_png,
    "jpeg": _of(JpegImageFile),  # a file of several JPEGs (MPO) is read by its first
    "webp": _of(WebPImageFile),
    "gif": _of(GifImageFile),
    "bmp": _of(BmpImageFile),
    "tiff": _of(TiffImageFile),
    "heic": _of(HeifImageFile),
    "avif": _of(AvifImageFile),
}
