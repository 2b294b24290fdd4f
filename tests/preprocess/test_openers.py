"""What must not keep a picture's pixels from being read, and what of a picture no pixels were told for."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from PIL import Image

from proteus.errors import InvalidPicture
from proteus.preprocess.decode import decode
from tests.preprocess.pictures import LIMITS, encode, noise, png_chunk
from tests.preprocess.profiles import SRGB, rgb_profile

PICTURE = noise(31, 17)
SWAPPED = rgb_profile((SRGB[2], SRGB[1], SRGB[0]))  # its red is blue
LARGE = zlib.compress(bytes(2 << 20))
BEHIND_IHDR = 33
CHUNKS = {
    "packed text of 2 MiB": png_chunk(b"zTXt", b"k\0\0" + LARGE),
    "packed XMP of 2 MiB": png_chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + LARGE),
    "text packed in an unknown way": png_chunk(b"zTXt", b"k\0\5abc"),
    "text with a wrong checksum": png_chunk(b"tEXt", b"a\0b")[:-4] + b"\0" * 4,
    "empty gamma": png_chunk(b"gAMA", b""),
    "short chromaticities": png_chunk(b"cHRM", b"\0" * 5),
    "short resolution": png_chunk(b"pHYs", b"\0\0"),
    "empty profile": png_chunk(b"iCCP", b""),
    "profile packed in an unknown way": png_chunk(b"iCCP", b"n\0\7abc"),
    "profile of 2 MiB": png_chunk(b"iCCP", b"n\0\0" + LARGE),
    "frame control without an animation": png_chunk(b"fcTL", b"\0" * 26),
    "frame out of order": png_chunk(b"fdAT", b"\0\0\0\5abc"),
}


def with_chunk(chunk: bytes) -> bytes:
    data = encode(PICTURE)
    return data[:BEHIND_IHDR] + chunk + data[BEHIND_IHDR:]


@pytest.mark.parametrize("chunk", CHUNKS.values(), ids=CHUNKS)
def test_what_stands_beside_the_pixels_of_a_png_does_not_matter(chunk: bytes) -> None:
    assert np.array_equal(decode(with_chunk(chunk), LIMITS), np.asarray(PICTURE))


def test_first_of_two_profiles_of_a_png_counts() -> None:
    first, second = (png_chunk(b"iCCP", b"n\0\0" + zlib.compress(icc)) for icc in (SWAPPED, rgb_profile(SRGB)))
    got = decode(with_chunk(first + second), LIMITS).astype(int)
    assert np.abs(got - np.asarray(PICTURE)[..., ::-1]).max() <= 2


def test_checksum_of_the_last_chunk_of_a_png_does_not_matter() -> None:
    assert np.array_equal(decode(encode(PICTURE)[:-1] + b"\0", LIMITS), np.asarray(PICTURE))


def test_damaged_transparency_of_a_png_is_damage() -> None:
    chunk = png_chunk(b"tRNS", b"\0" * 6)
    for broken in (chunk[:-1] + b"\0", png_chunk(b"tRNS", b"\0")):
        with pytest.raises(InvalidPicture, match="truncated or damaged"):
            decode(with_chunk(broken), LIMITS)


def test_resolution_of_an_odd_type_does_not_keep_a_jpeg_from_being_read() -> None:
    entries = struct.pack(">HHII", 0x011A, 1, 1, 0) + struct.pack(">HHIHH", 0x0128, 3, 1, 2, 0)
    exif = b"Exif\0\0MM\0*\0\0\0\x08" + struct.pack(">H", 2) + entries + b"\0" * 4
    data = encode(PICTURE, "JPEG", exif=exif)
    assert np.array_equal(decode(data, LIMITS), np.asarray(Image.open(io.BytesIO(encode(PICTURE, "JPEG")))))


def gif(first_px: tuple[int, int, int, int], screen_px: tuple[int, int], transparent: int | None) -> bytes:
    """One frame, red, at (left, top, width, height) of a screen; index 0 of the palette is blue."""
    left, top, width, height = first_px
    frame = Image.new("P", (width, height), 1)
    frame.putpalette([0, 0, 255, 255, 0, 0])
    stored = encode(frame, "GIF", optimize=False)
    pixels = stored[stored.index(b"\x2c") + 10 :]
    control = b"" if transparent is None else b"\x21\xf9\x04\x01\0\0" + bytes((transparent, 0))
    palette = bytes([0, 0, 255, 255, 0, 0])
    screen = b"GIF89a" + struct.pack("<HHBBB", *screen_px, 0x80, 0, 0) + palette
    return screen + control + b"\x2c" + struct.pack("<HHHHB", left, top, width, height, 0) + pixels


@pytest.mark.parametrize("transparent", [None, 0], ids=["opaque", "with a transparent colour"])
@pytest.mark.parametrize(
    ("first_px", "screen_px"),
    [((4, 6, 8, 9), (16, 20)), ((0, 0, 8, 8), (16, 16)), ((8, 8, 8, 8), (8, 8))],
    ids=["in the middle", "in a corner", "beyond the screen"],
)
def test_what_the_first_frame_of_a_gif_leaves_free_shows_the_background(
    first_px: tuple[int, int, int, int], screen_px: tuple[int, int], transparent: int | None
) -> None:
    limits = LIMITS.model_copy(update={"background": "#0a141e"})
    got = decode(gif(first_px, screen_px, transparent), limits)
    left, top, width, height = first_px
    wanted = np.full((max(screen_px[1], top + height), max(screen_px[0], left + width), 3), (10, 20, 30), np.uint8)
    wanted[top : top + height, left : left + width] = (255, 0, 0)
    assert np.array_equal(got, wanted)


def webp(num_frames: int, says_alpha: bool) -> bytes:
    """Frames of 8x8, red, at (4, 4) of a canvas of 16x16."""
    pixels = encode(Image.new("RGB", (8, 8), (255, 0, 0)), "WEBP", lossless=True)[12:]
    place = b"".join(value.to_bytes(3, "little") for value in (2, 2, 7, 7, 100))
    frame = riff(b"ANMF", place + b"\0" + pixels)
    head = bytes((0x12 if says_alpha else 0x02, 0, 0, 0)) + (15).to_bytes(3, "little") * 2
    body = b"WEBP" + riff(b"VP8X", head) + riff(b"ANIM", b"\0" * 6) + frame * num_frames
    return riff(b"RIFF", body)


def test_worker_knows_no_limit_on_pixels_but_the_contracts() -> None:
    program = (
        "from PIL import Image; from proteus.preprocess.openers import OPENERS, keep_decoders_small\n"
        f"Image.MAX_IMAGE_PIXELS = 8; keep_decoders_small(); print(OPENERS['webp']({encode(PICTURE, 'WEBP')!r}).size)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "(31, 17)", done.stderr


def riff(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("<I", len(body)) + body + b"\0" * (len(body) % 2)


@pytest.mark.parametrize("says_alpha", [False, True])
@pytest.mark.parametrize("num_frames", [1, 2])
def test_what_the_first_frame_of_a_webp_leaves_free_shows_the_background(num_frames: int, says_alpha: bool) -> None:
    limits = LIMITS.model_copy(update={"background": "#0a141e"})
    wanted = np.full((16, 16, 3), (10, 20, 30), np.uint8)
    wanted[4:12, 4:12] = (255, 0, 0)
    assert np.array_equal(decode(webp(num_frames, says_alpha), limits), wanted)
