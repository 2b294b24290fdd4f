"""Picture files made in code, in every format, mode, turn and kind of animation that Pillow writes, and what Pillow and
libheif see in them.
"""

from __future__ import annotations

import io
import struct
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from PIL import Image, ImageOps
from PIL.PngImagePlugin import PngInfo
from pillow_heif.as_plugin import HeifImageFile, _save_all_heif, _save_heif  # never registered: for this room alone

MODES = {
    "PNG": ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"),
    "JPEG": ("L", "RGB", "CMYK"),
    "WEBP": ("RGB", "RGBA"),
    "GIF": ("1", "L", "P", "RGB"),
    "BMP": ("1", "L", "P", "RGB", "RGBA"),
    "TIFF": ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "I;16", "I;16B", "I", "F"),
    "HEIF": ("L", "RGB", "RGBA"),
    "AVIF": ("L", "RGB", "RGBA"),
}
SIZES = ((1, 1), (7, 3), (67, 35), (2, 129))
ANIMATED = ("PNG", "WEBP", "GIF", "TIFF", "AVIF", "HEIF")
OPTIONS: dict[str, tuple[dict[str, Any], ...]] = {
    "JPEG": ({"progressive": True}, {"quality": 5, "optimize": True}, {"subsampling": 0}, {"comment": b"x" * 9000}),
    "WEBP": ({"lossless": True}, {"quality": 5}, {"lossless": True, "exact": True}),
    "TIFF": (
        {"compression": "tiff_lzw"},
        {"compression": "jpeg"},
        {"compression": "tiff_adobe_deflate"},
        {"compression": "packbits"},
        {"big_tiff": True},  # Pillow reads back only the little-endian ones
    ),
    "PNG": ({"optimize": True}, {"icc_profile": b"profile" * 99}, {"bits": 2}),
    "GIF": ({"interlace": False}, {"comment": b"y" * 700}, {"transparency": 0}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a decoder makes of a file."""

    upright_px: tuple[int, int]
    mode: str
    num_frames: int


def picture(mode: str, size: tuple[int, int], seed: int = 0) -> Image.Image:
    """A gradient with an edge, so that no two turns look alike."""
    across = Image.linear_gradient("L").rotate(90).resize(size)
    along = Image.radial_gradient("L").resize(size)
    rgb = Image.merge("RGB", (across, along, Image.new("L", size, 40 + 60 * seed % 200)))
    if mode == "LAB":
        return Image.frombytes("LAB", size, rgb.tobytes())
    if mode in ("I;16", "I;16B"):
        return Image.frombytes(mode, size, across.tobytes() * 2)
    if mode == "PA":
        return rgb.quantize(16).convert("PA")
    return rgb.convert("L").convert(mode) if mode in ("I", "F") else rgb.convert(mode)


def saved(image: Image.Image, name: str, **options: Any) -> bytes:
    out = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name != "HEIF":
            image.save(out, name, **options)
        else:
            image.encoderinfo = {key: value for key, value in options.items() if key != "save_all"}
            (_save_all_heif if "save_all" in options else _save_heif)(image, out, "")
    return out.getvalue()


def turned(orientation: int) -> bytes:
    """EXIF of one tag."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif.tobytes()


def stills() -> Iterator[tuple[str, bytes]]:
    for name, modes in MODES.items():
        for mode in modes:
            for size in SIZES:
                yield f"{name}-{mode}-{size[0]}x{size[1]}", saved(picture(mode, size), name)


def with_options() -> Iterator[tuple[str, bytes]]:
    for name, choices in OPTIONS.items():
        for mode in MODES[name]:
            for options in choices:
                if mode == "I;16B" and "big_tiff" in options:
                    continue
                try:
                    yield f"{name}-{mode}-{options}"[:60], saved(picture(mode, (67, 35)), name, **options)
                except (OSError, ValueError, SystemError):
                    continue  # the encoder does not write this mode so


def turns() -> Iterator[tuple[str, bytes]]:
    """Orientations that exist and some that do not, in every format that has a place for them."""
    for orientation in (*range(1, 9), 0, 9, 65_535):
        for name in ("PNG", "JPEG", "WEBP", "TIFF", "AVIF"):
            options = {"exif": turned(orientation)}
            yield f"{name}-turned-{orientation}", saved(picture("RGB", (67, 35)), name, **options)
        image = picture("RGB", (67, 35))
        image.info["exif"] = turned(orientation)
        yield f"HEIF-turned-{orientation}", saved(image, "HEIF")
        info = PngInfo()
        info.add_itxt("XML:com.adobe.xmp", xmp(orientation % 10), zip=orientation % 2 == 0)
        yield f"PNG-xmp-{orientation}", saved(picture("RGB", (67, 35)), "PNG", pnginfo=info)
        for name in ("JPEG", "WEBP"):
            packet = xmp(orientation % 10).encode()
            yield f"{name}-xmp-{orientation}", saved(picture("RGB", (67, 35)), name, xmp=packet)


def xmp(orientation: int) -> str:
    return f'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="{orientation}"/></x:xmpmeta>'


def animations() -> Iterator[tuple[str, bytes]]:
    for name in ANIMATED:
        for mode in MODES[name]:
            for number in (1, 2, 5):
                frames = [picture(mode, (67, 35), seed) for seed in range(number)]
                options = {"save_all": True, "append_images": frames[1:]}
                yield f"{name}-{mode}-{number} frames", saved(frames[0], name, **options)
    frames = [picture("RGB", (67, 35), seed) for seed in range(4)]
    yield "PNG-default image", saved(frames[0], "PNG", save_all=True, append_images=frames[1:], default_image=True)


def corpus() -> Iterator[tuple[str, bytes]]:
    for some in (stills(), with_options(), turns(), animations()):
        yield from some


def seen(data: bytes) -> Seen:
    """By decoding the picture and turning it upright."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        opened = HeifImageFile(io.BytesIO(data)) if data[4:11] == b"ftyphei" else Image.open(io.BytesIO(data))
        mode, num_frames = opened.mode, getattr(opened, "n_frames", 1)
        upright = ImageOps.exif_transpose(opened)
    return Seen(upright_px=upright.size, mode=mode, num_frames=num_frames)


def png_chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png_of_one_bit(side_px: int) -> bytes:
    """A whole, valid picture whose file is tiny and whose pixels are not."""
    packer, row = zlib.compressobj(9), b"\0" * (1 + (side_px + 7) // 8)
    body = b"".join(packer.compress(row) for _ in range(side_px)) + packer.flush()
    head = png_chunk(b"IHDR", struct.pack(">IIBBBBB", side_px, side_px, 1, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + png_chunk(b"IDAT", body) + png_chunk(b"IEND", b"")
