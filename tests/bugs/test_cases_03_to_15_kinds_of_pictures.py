"""The kinds behind the missing 3, 6, 9, 12 and 15 of the section on decoding: a mode that few try, several frames,
another way of laying out the pixels, and files that are no picture whatever their name says.

Seen in such reports: grey with alpha or CMYK comes out inverted or crashes, 16 bits come out white, an animation is
read by its last frame or fails, a progressive or interlaced file fails, and an HTML page or SVG named .png is an
internal error. Cause: a decoder that was written for RGB, and a format taken from the name.
Right: one picture is one picture, however it is stored, and what is none is named. The same picture is stored in every
way here and compared with itself, so that an inversion, a swap or a wrong frame is far off.
"""

from __future__ import annotations

import base64
import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from proteus.errors import InvalidPicture, MediaTooLarge
from proteus.preprocess.decode import decode
from tests.bugs.door import PICTURE, asked, text, untouched
from tests.door.test_chat import Models
from tests.preprocess.pictures import LIMITS, encode, noise, png_chunk, srgb_profile

SCENE = noise(120, 90, 3)
GREY = SCENE.convert("L")


def deep() -> bytes:
    return encode(Image.fromarray(np.asarray(GREY).astype(np.uint16) * 257))


def inks() -> Image.Image:
    """The scene in inks without black."""
    return Image.fromarray(255 - np.dstack([np.asarray(SCENE), np.full((90, 120), 255, np.uint8)]), "CMYK")


def opaque(picture: Image.Image) -> Image.Image:
    picture = picture.copy()
    picture.putalpha(255)
    return picture


def interlaced_png() -> bytes:
    """Adam7, which Pillow reads and does not write."""
    pixels = np.asarray(SCENE)
    passes = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
    rows = [
        b"\0" + line.tobytes()
        for top, left, down, right in passes
        for line in pixels[top::down, left::right]
        if line.size
    ]
    head = struct.pack(">IIBBBBB", 120, 90, 8, 2, 0, 0, 1)
    body = zlib.compress(b"".join(rows))
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", head) + png_chunk(b"IDAT", body) + png_chunk(b"IEND", b"")


def animated(name: str, **options: Any) -> bytes:
    others = [noise(120, 90, seed) for seed in (8, 9)]
    return encode(SCENE, name, save_all=True, append_images=others, **options)


BEST = {"quality": 100, "subsampling": 0}
STORED: dict[str, tuple[bytes, Image.Image, float]] = {
    "grey": (encode(GREY), GREY, 0),
    "grey and alpha": (encode(opaque(GREY)), GREY, 0),
    "grey JPEG": (encode(GREY, "JPEG", quality=100), GREY, 1),
    "16 bits": (deep(), GREY, 0),
    "palette": (encode(SCENE.quantize(256)), SCENE.quantize(256), 0),
    "RGBA": (encode(opaque(SCENE)), SCENE, 0),
    "RGBA TIFF": (encode(opaque(SCENE), "TIFF"), SCENE, 0),
    "inks TIFF": (encode(inks(), "TIFF"), SCENE, 0),
    "inks JPEG": (encode(inks(), "JPEG", quality=100), SCENE, 2),
    "with a profile": (encode(SCENE, icc_profile=srgb_profile()), SCENE, 0),
    "progressive JPEG": (encode(SCENE, "JPEG", progressive=True, **BEST), SCENE, 2),
    "JPEG in strips": (encode(SCENE, "JPEG", restart_marker_blocks=2, **BEST), SCENE, 2),
    "JPEG with odd sampling": (encode(SCENE, "JPEG", quality=100, subsampling="4:2:2"), SCENE, 4),
    "JPEG, comment of 60 kB": (encode(SCENE, "JPEG", comment=b"\xff\xd9" * 30_000, **BEST), SCENE, 2),
    "JPEG with bytes behind": (encode(SCENE, "JPEG", **BEST) + b"\0" * 5000 + b"PK\3\4", SCENE, 2),
    "JPEG with others behind (MPO)": (animated("MPO", quality=100), SCENE, 4),
    "interlaced PNG": (interlaced_png(), SCENE, 0),
    "PNG with a density": (encode(SCENE, dpi=(300, 72)), SCENE, 0),
    "interlaced GIF": (encode(SCENE, "GIF", interlace=1), SCENE, 12),
    "animated GIF": (animated("GIF"), SCENE, 12),
    "animated PNG": (animated("PNG"), SCENE, 0),
    "animated WebP": (animated("WEBP", lossless=True), SCENE, 0),
    "TIFF of three pages": (animated("TIFF"), SCENE, 0),
    "TIFF LZW": (encode(SCENE, "TIFF", compression="tiff_lzw"), SCENE, 0),
    "TIFF JPEG": (encode(SCENE, "TIFF", compression="jpeg", quality=100), SCENE, 4),
    "BMP of 32 bits": (encode(opaque(SCENE), "BMP"), SCENE, 0),
}
NO_PICTURES = {
    "html": b"<!DOCTYPE html><html><title>404</title></html>",
    "svg": b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>',
    "pdf": b"%PDF-1.7\n1 0 obj\n",
    "ico": encode(SCENE, "ICO"),
    "PPM": encode(SCENE, "PPM"),
    "JPEG 2000": encode(SCENE, "JPEG2000"),
    "TGA": encode(SCENE, "TGA"),
    "PCX": encode(SCENE, "PCX"),
    "PostScript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
    "zip": b"PK\3\4" + bytes(60),
    "a script": b"push graphic-context\nviewbox 0 0 9 9\nfill 'url(https://example.com/x.png\"|ls)'\n",
    "a path": b"/etc/passwd",
    "numpy": b"\x93NUMPY\x01\x00" + bytes(120),
    "text": "ein Bild".encode("utf-16"),
}


@pytest.mark.parametrize("name", STORED)
def test_scene_is_the_same_however_it_is_stored(name: str) -> None:
    data, wanted, mean_levels = STORED[name]
    rgb = decode(data, LIMITS).astype(int)
    assert rgb.shape == (90, 120, 3)
    assert np.abs(rgb - np.asarray(wanted.convert("RGB"))).mean() <= mean_levels


@pytest.mark.parametrize("name", STORED)
def test_scene_is_planned_alike_however_it_is_stored(name: str) -> None:
    client, models = asked(STORED[name][0], content=[PICTURE])
    assert client.reports[0]["usage"]["visual_tokens"] == 36
    assert models.targets == [None]


@pytest.mark.parametrize("name", NO_PICTURES)
@pytest.mark.parametrize("way", ["attached", "image/png", "image/jpeg"])
def test_what_is_no_picture_is_refused_whatever_it_is_called(name: str, way: str) -> None:
    data, models = NO_PICTURES[name], Models()
    url = f"data:{way};base64,{base64.b64encode(data).decode()}"
    attached, part = ((data,), PICTURE) if way == "attached" else ((), {"type": "image_url", "image_url": {"url": url}})
    with pytest.raises(InvalidPicture, match="picture 1: .*; limit: formats read: png, jpeg.*; fix: convert"):
        asked(*attached, content=[part, text("?")], models=models)
    assert untouched(models)


@pytest.mark.parametrize("declared", ["image/png", "image/jpeg", "image/svg+xml", "text/html", "", "nonsense"])
def test_declared_type_decides_nothing(declared: str) -> None:
    data = encode(SCENE, "JPEG")
    url = f"data:{declared};base64,{base64.b64encode(data).decode()}"
    _, models = asked(content=[{"type": "image_url", "image_url": {"url": url}}, text("?")])
    assert [picture for picture, _ in models.encoded] == [data]


def test_animation_of_too_many_frames_is_refused_by_their_number() -> None:
    out = io.BytesIO()
    frames = [Image.new("L", (8, 8), index % 256) for index in range(501)]
    frames[0].save(out, "GIF", save_all=True, append_images=frames[1:])
    with pytest.raises(MediaTooLarge, match=r"501 frames; limit: \[image\] max_animation_frames = 500"):
        asked(out.getvalue(), content=[PICTURE])


def test_png_that_says_it_is_animated_and_is_not_is_one_picture() -> None:
    plain = encode(SCENE)
    control = png_chunk(b"acTL", struct.pack(">II", 1, 0))
    data = plain[:33] + control + plain[33:]
    assert np.array_equal(decode(data, LIMITS), np.asarray(SCENE))
