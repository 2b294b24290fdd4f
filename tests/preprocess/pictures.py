"""Pictures made in code, for the tests of this room."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image, ImageCms
from pillow_heif.as_plugin import _save_heif  # not registered: nothing in this process may open HEIC by accident

from proteus.limits import ImageLimits

LIMITS = ImageLimits(
    max_bytes=2_000_000,
    max_pixels=1_000_000,
    min_side_px=8,
    max_side_px=2_000,
    max_aspect_ratio=20.0,
    max_pictures=4,
    formats=["png", "jpeg", "webp", "gif", "bmp", "tiff", "heic", "avif"],
    animation="first_frame",
    max_animation_frames=100,
    background="#ffffff",
)
EVERY_FORMAT = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "HEIF", "AVIF")  # as Pillow and pillow-heif name them
ORIENTATION = 0x0112


def noise(width_px: int, height_px: int, seed: int = 0) -> Image.Image:
    """Colours that differ at every pixel, smooth enough for a codec."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (9, 7, 3), dtype=np.uint8))
    return small.resize((width_px, height_px), Image.Resampling.BICUBIC)


def encode(picture: Image.Image, name: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    if name == "HEIF":
        picture = picture.copy()
        picture.encoderinfo = options
        _save_heif(picture, out, "")
    else:
        picture.save(out, name, **options)
    return out.getvalue()


def turned(upright: Image.Image, orientation: int) -> Image.Image:
    """The pixels to store, so that a viewer who obeys `orientation` sees `upright`."""
    undo = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    return upright.transpose(undo[orientation]) if orientation in undo else upright


def oriented(upright: Image.Image, orientation: int, name: str, **options: Any) -> bytes:
    """A file that stores the picture turned, and says how to turn it back in the way of its format."""
    stored = turned(upright, orientation)
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return encode(stored, name, exif=exif.tobytes(), **options)


def png_chunk(kind: bytes, body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + kind + body + zlib.crc32(kind + body).to_bytes(4, "big")


def png(width_px: int, height_px: int, depth: int, colour: int, row: bytes, *, key: bytes = b"") -> bytes:
    """A PNG whose rows are all `row`; `key` is its tRNS chunk. For depths that Pillow does not write."""
    header = struct.pack(">IIBBBBB", width_px, height_px, depth, colour, 0, 0, 0)
    body = zlib.compress((b"\0" + row) * height_px)
    transparency = png_chunk(b"tRNS", key) if key else b""
    chunks = png_chunk(b"IHDR", header) + transparency + png_chunk(b"IDAT", body) + png_chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def png_of_one_bit(side_px: int) -> bytes:
    """A picture whose file is tiny and whose pixels are not."""
    packer = zlib.compressobj(9)
    row = b"\0" * (1 + (side_px + 7) // 8)
    body = b"".join(packer.compress(row) for _ in range(side_px)) + packer.flush()
    header = struct.pack(">IIBBBBB", side_px, side_px, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + png_chunk(b"IDAT", body) + png_chunk(b"IEND", b"")


def tiff(
    width_px: int,
    height_px: int,
    pixels: bytes,
    *,
    order: str = "<",
    bits: tuple[int, ...],
    photometric: int,
    **tags: int,
) -> bytes:
    """An uncompressed TIFF of one strip. `tags` by name: `extra_samples`, `sample_format`, `orientation`."""
    numbers = {"orientation": 274, "extra_samples": 338, "sample_format": 339}
    entries: dict[int, tuple[int, ...]] = {
        256: (width_px,),
        257: (height_px,),
        258: bits,
        259: (1,),
        262: (photometric,),
        273: (8,),
        277: (len(bits),),
        278: (height_px,),
        279: (len(pixels),),
        **{numbers[name]: (value,) * (len(bits) if name == "sample_format" else 1) for name, value in tags.items()},
    }
    after = 8 + len(pixels) + 2 + 12 * len(entries) + 4
    table, long_values = struct.pack(f"{order}H", len(entries)), b""
    for number, values in sorted(entries.items()):
        kind, letter = (4, "I") if number in (256, 257, 273, 278, 279) else (3, "H")
        packed = struct.pack(f"{order}{len(values)}{letter}", *values)
        if len(packed) > 4:
            table += struct.pack(f"{order}HHII", number, kind, len(values), after + len(long_values))
            long_values += packed
        else:
            table += struct.pack(f"{order}HHI", number, kind, len(values)) + packed.ljust(4, b"\0")
    magic = b"II*\0" if order == "<" else b"MM\0*"
    return magic + struct.pack(f"{order}I", 8 + len(pixels)) + pixels + table + b"\0" * 4 + long_values


def srgb_profile() -> bytes:
    return ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
