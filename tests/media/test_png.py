from __future__ import annotations

import struct
import zlib

import pytest
from PIL.PngImagePlugin import PngInfo

from proteus.errors import InvalidPicture
from proteus.media.damage import Damaged
from proteus.media.png import MAX_CHUNKS, MODES, probe_png
from tests.media.corpus_pictures import picture, png_chunk, saved, seen, turned, xmp

START = b"\x89PNG\r\n\x1a\n"
RAW_PROFILE = b"Raw profile type exif\0"


def head(width_px: int = 67, height_px: int = 35, depth: int = 8, colour: int = 2) -> bytes:
    return png_chunk(b"IHDR", struct.pack(">IIBBBBB", width_px, height_px, depth, colour, 0, 0, 0))


def orientation(*chunks: bytes) -> int:
    return probe_png(memoryview(START + head() + b"".join(chunks))).orientation


def hexadecimal(exif: bytes) -> bytes:
    """As ImageMagick wrote it before there was a chunk."""
    return f"\nexif\n{len(exif):8}\n{exif.hex()}\n".encode()


@pytest.mark.parametrize(("kind", "mode"), MODES.items())
def test_mode_follows_depth_and_colour_type(kind: tuple[int, int], mode: str) -> None:
    header = probe_png(memoryview(START + head(5, 6, *kind)))
    assert (header.width_px, header.height_px, header.mode) == (5, 6, mode)


@pytest.mark.parametrize(
    "data",
    [
        START,
        START + head()[:20],
        START + png_chunk(b"IHDR", b"\0" * 12),
        START + png_chunk(b"tEXt", b"x" * 13) + head(),
        START + head(0, 5),
        START + head(5, 0),
        START + head(depth=3),
        START + head(colour=7),
        START + head(8, 8) + head(9_000, 9_000),  # the second would be decoded
        START + head() + png_chunk(b"acTL", b"\0\0"),
    ],
)
def test_broken_head_is_damage(data: bytes) -> None:
    with pytest.raises((Damaged, struct.error, StopIteration)):
        probe_png(memoryview(data))


@pytest.mark.parametrize("before", [b"", png_chunk(b"IDAT", b"garbage") * 3])
def test_turn_is_found_before_and_behind_the_pixels(before: bytes) -> None:
    packed = zlib.compress(xmp(5).encode())
    keyword = b"XML:com.adobe.xmp\0"
    exif = turned(6)
    assert orientation(before, png_chunk(b"eXIf", exif[6:])) == 6
    assert orientation(before, png_chunk(b"tEXt", RAW_PROFILE + hexadecimal(exif))) == 6
    assert orientation(before, png_chunk(b"zTXt", RAW_PROFILE + b"\0" + zlib.compress(hexadecimal(exif)))) == 6
    assert orientation(before, png_chunk(b"iTXt", keyword + b"\0\0en\0\0" + xmp(5).encode())) == 5
    assert orientation(before, png_chunk(b"iTXt", keyword + b"\1\0\0\0" + packed)) == 5
    assert orientation(before, png_chunk(b"tEXt", keyword + xmp(5).encode())) == 5


@pytest.mark.parametrize(
    "chunk",
    [
        png_chunk(b"zTXt", RAW_PROFILE + b"\0no zlib"),
        png_chunk(b"tEXt", RAW_PROFILE + b"\n\n\nno hex"),
        png_chunk(b"tEXt", RAW_PROFILE + b"\n\n\n\xff\xff"),
        png_chunk(b"iTXt", b"XML:com.adobe.xmp\0"),
        png_chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0no end"),
        png_chunk(b"tEXt", b"Comment\0" + xmp(5).encode()),
        png_chunk(b"IEND", b"") + png_chunk(b"eXIf", turned(6)[6:]),
    ],
)
def test_metadata_that_cannot_be_read_turn_nothing(chunk: bytes) -> None:
    assert orientation(chunk) == 1


def test_old_exif_is_read_as_pillow_reads_it() -> None:
    info = PngInfo()
    info.add_text("Raw profile type exif", hexadecimal(turned(8)).decode(), zip=True)
    data = saved(picture("RGB", (67, 35)), "PNG", pnginfo=info)
    assert probe_png(memoryview(data)).upright_px == seen(data).upright_px == (35, 67)


def test_packed_text_is_unpacked_up_to_a_cap_and_once() -> None:
    bomb = png_chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + zlib.compress(b" " * 50_000_000 + xmp(6).encode()))
    assert orientation(bomb, bomb, bomb) == 1
    assert orientation(bomb, png_chunk(b"tEXt", b"XML:com.adobe.xmp\0" + xmp(6).encode())) == 6


def test_frames_are_those_of_the_animation_and_the_picture_before_it() -> None:
    control, frame = png_chunk(b"acTL", struct.pack(">II", 3, 0)), png_chunk(b"fcTL", bytes(26))
    pixels, later = png_chunk(b"IDAT", b"x"), png_chunk(b"fdAT", b"\0\0\0\1x")
    body = frame + pixels + frame + later
    assert probe_png(memoryview(START + head() + control + body)).num_frames == 3
    assert probe_png(memoryview(START + head() + control + pixels + body)).num_frames == 4
    assert probe_png(memoryview(START + head() + body)).num_frames == 1


@pytest.mark.parametrize("number", [0, 2**31 + 1])
def test_impossible_number_of_frames_is_no_animation(number: int) -> None:
    control = png_chunk(b"acTL", struct.pack(">II", number, 0))
    assert probe_png(memoryview(START + head() + control + png_chunk(b"IDAT", b"x"))).num_frames == 1


def test_turn_of_later_frames_is_not_that_of_the_first() -> None:
    control, frame = png_chunk(b"acTL", struct.pack(">II", 2, 0)), png_chunk(b"fcTL", bytes(26))
    exif = png_chunk(b"eXIf", turned(6)[6:])
    assert orientation(control, frame, png_chunk(b"IDAT", b"x"), frame, exif) == 1


def test_too_many_chunks_are_refused() -> None:
    chunk = png_chunk(b"IDAT", b"")
    assert probe_png(memoryview(START + head() + chunk * (MAX_CHUNKS - 2))).width_px == 67
    with pytest.raises(InvalidPicture, match="more than 8,192 chunks"):
        probe_png(memoryview(START + head() + chunk * MAX_CHUNKS))
