from __future__ import annotations

import contextlib
import io
import zlib

import pytest
from PIL import Image

from proteus.errors import InvalidPicture, MediaTooLarge, ProteusError
from proteus.preprocess.header import read_header
from tests.preprocess.pictures import LIMITS, encode, noise


@pytest.mark.parametrize("name", ["PNG", "JPEG", "WEBP", "GIF", "BMP"])
def test_format_and_size_come_from_the_content(name: str) -> None:
    header = read_header(encode(noise(40, 24), name), LIMITS)
    assert (header.format, header.width_px, header.height_px) == (name.lower(), 40, 24)


def chunk(kind: bytes, body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + kind + body + zlib.crc32(kind + body).to_bytes(4, "big")


def png_of_one_bit(side_px: int) -> bytes:
    """A picture whose file is tiny and whose pixels are not."""
    size = side_px.to_bytes(4, "big")
    packer = zlib.compressobj(9)
    row = b"\0" * (1 + (side_px + 7) // 8)
    body = b"".join(packer.compress(row) for _ in range(side_px)) + packer.flush()
    header = chunk(b"IHDR", size + size + b"\x01\0\0\0\0")
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", body) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side_px", [1_500, 9_400, 13_400])
def test_bomb_is_refused_from_its_header_with_our_limit(side_px: int) -> None:
    data = png_of_one_bit(side_px)
    assert len(data) < LIMITS.max_bytes
    with pytest.raises(MediaTooLarge, match=r"\[image\] max_(side_px = 2,000|pixels = 1,000,000)"):
        read_header(data, LIMITS)


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (b"", InvalidPicture, ["0 bytes"]),
        (b"hello, I am no picture", InvalidPicture, ["no known picture", "png, jpeg"]),
        (b"\x89PNG", InvalidPicture, ["no known picture"]),
        (b"\x89PNG\r\n\x1a\n", InvalidPicture, ["starts as png", "truncated"]),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", InvalidPicture, ["format heic", "convert"]),
        (b"\0\0\0\x18ftypavif\0\0\0\0", InvalidPicture, ["format avif"]),
        (b"%PDF-1.7", InvalidPicture, ["format pdf"]),
        (b"x" * 200_001, MediaTooLarge, ["200,001 bytes", "max_bytes = 200,000"]),
        (encode(noise(1, 1)), InvalidPicture, ["1x1 px", "min_side_px = 8"]),
        (encode(noise(224, 1)), InvalidPicture, ["224x1 px", "min_side_px = 8"]),
        (encode(noise(8, 161)), InvalidPicture, ["8x161 px", "max_aspect_ratio = 20"]),
        (encode(Image.new("1", (2_001, 200))), MediaTooLarge, ["2001x200", "max_side_px = 2,000"]),
        (encode(Image.new("1", (1_001, 1_000))), MediaTooLarge, ["1,001,000 px", "max_pixels = 1,000,000"]),
    ],
)
def test_error_names_what_limit_and_fix(data: bytes, error: type[ProteusError], words: list[str]) -> None:
    with pytest.raises(error) as caught:
        read_header(data, LIMITS)
    assert "fix: " in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_sides_at_the_limits_pass() -> None:
    for width_px, height_px in [(8, 8), (8, 160), (160, 8), (2_000, 500), (1_000, 1_000)]:
        read_header(encode(Image.new("1", (width_px, height_px))), LIMITS)


def test_format_that_the_deployment_leaves_out_is_refused() -> None:
    limits = LIMITS.model_copy(update={"formats": ["jpeg"]})
    with pytest.raises(InvalidPicture, match=r"format png; limit: \[image\] formats = jpeg"):
        read_header(encode(noise(16, 16)), limits)


def test_every_cut_of_a_header_is_an_error_of_ours() -> None:
    for name in ("PNG", "JPEG", "WEBP", "GIF", "BMP"):
        data = encode(noise(16, 16), name)
        for length in range(60):
            with contextlib.suppress(InvalidPicture):
                read_header(data[:length], LIMITS)


def test_picture_of_many_frames_is_read_by_its_first() -> None:
    frames = [noise(20, 10, seed) for seed in range(3)]
    out = io.BytesIO()
    frames[0].save(out, "GIF", save_all=True, append_images=frames[1:])
    assert read_header(out.getvalue(), LIMITS).width_px == 20
