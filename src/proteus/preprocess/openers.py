"""A format that the content showed -> the one decoder that may read it. Nothing is guessed, nothing is registered.

Pillow's `Image.open` tries its plugins by turns and has a limit of its own on pixels; here the format is known from the
header, and our limit has been checked before.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterator, Mapping

import pillow_heif
from PIL import AvifImagePlugin, Image, ImageFile
from PIL.AvifImagePlugin import AvifImageFile
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile
from pillow_heif.as_plugin import HeifImageFile

from proteus.limits import PictureFormat
from proteus.media.webp import ANIMATION

Opener = Callable[[bytes], ImageFile.ImageFile]

UPRIGHT_WHEN_LOADED = frozenset({"heic", "tiff"})  # these two turn the pixels themselves
PNG_SIGNATURE_BYTES = 8
PNG_DEPTH_AT = 24
PIXEL_CHUNKS = (b"IHDR", b"PLTE", b"tRNS", b"IDAT")
LAST_CHUNK = b"\0\0\0\0IEND\xae\x42\x60\x82"
MAX_PROFILE_BYTES = 4 << 20  # unpacked
WEBP_HEAD, WEBP_FLAGS_AT = slice(12, 16), 20


def keep_decoders_small() -> None:
    """For this whole process: HEIC and AVIF in one thread, as each takes address space; no pictures beside the main; no
    limit on pixels by Pillow, whose WebP has one of its own.
    """
    Image.MAX_IMAGE_PIXELS = None
    pillow_heif.options.DECODE_THREADS = 1
    pillow_heif.options.THUMBNAILS = False
    pillow_heif.options.DEPTH_IMAGES = False
    pillow_heif.options.AUX_IMAGES = False
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1


class _Jpeg(JpegImageFile):
    """Pillow's, less its look at the EXIF for a resolution, which raises on some."""

    def _read_dpi_from_exif(self) -> None:
        pass


def _open_webp(data: bytes) -> ImageFile.ImageFile:
    """Of an animation with transparency, also when its flags tell none: that is where its first frame is not."""
    picture = WebPImageFile(io.BytesIO(data))
    if data[WEBP_HEAD] == b"VP8X" and data[WEBP_FLAGS_AT] & ANIMATION:
        picture._mode = picture.rawmode = "RGBA"
    return picture


def _open_png(data: bytes) -> ImageFile.ImageFile:
    """The transparent colour in the scale of the pixels. Pillow is given the chunks of the pixels alone, as it would
    refuse the picture for a mistake in any other; of those that are missing or damaged is an error.
    """
    chunks, icc = _pixel_chunks(data)
    picture = PngImageFile(io.BytesIO(chunks))
    if icc:
        picture.info["icc_profile"] = icc
    key, depth = picture.info.get("transparency"), data[PNG_DEPTH_AT]
    if picture.mode == "L" and depth < 8:
        picture.info["transparency"] = None if key is None else key * 255 // (2**depth - 1)
    elif picture.mode == "RGB" and depth == 16 and key is not None:
        picture.info["transparency"] = tuple(value >> 8 for value in key)
    return picture


def _pixel_chunks(data: bytes) -> tuple[bytes, bytes]:
    """The file without what is not PIXEL_CHUNKS, and its colour profile, empty without a usable one."""
    view, kind, icc = memoryview(data), b"", b""
    parts = [view[:PNG_SIGNATURE_BYTES]]
    for kind, start, end in _png_chunks(data):
        if kind in PIXEL_CHUNKS:
            if zlib.crc32(view[start - 4 : end]) != int.from_bytes(data[end : end + 4], "big"):
                raise ValueError("a chunk differs from its checksum")
            parts.append(view[start - 8 : end + 4])
        elif kind == b"iCCP":
            icc = icc or _unpacked_profile(data[start:end])
    if kind != b"IEND":
        raise ValueError("the last chunk is missing")
    return b"".join((*parts, LAST_CHUNK)), icc


def _unpacked_profile(body: bytes) -> bytes:
    """Behind a name and the way of packing, of which there is one; W3C PNG §11.3.2.3."""
    packed = body.partition(b"\0")[2]
    try:
        return zlib.decompressobj().decompress(packed[1:], MAX_PROFILE_BYTES) if packed[:1] == b"\0" else b""
    except zlib.error:
        return b""


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
    "jpeg": _of(_Jpeg),  # a file of several JPEGs (MPO) is read by its first
    "webp": _open_webp,
    "gif": _of(GifImageFile),
    "bmp": _of(BmpImageFile),
    "tiff": _of(TiffImageFile),
    "heic": _of(HeifImageFile),
    "avif": _of(AvifImageFile),
}
