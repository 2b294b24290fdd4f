from __future__ import annotations

import contextlib
import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from proteus.errors import InvalidPicture, MediaTooLarge
from proteus.media.header import PictureHeader
from proteus.preprocess.decode import decode, decode_accepted
from tests.preprocess.pictures import EVERY_FORMAT, LIMITS, encode, noise, oriented, tiff

WHITE = (255, 255, 255)
LOSSLESS: dict[str, dict[str, Any]] = {"PNG": {}, "BMP": {}, "TIFF": {}, "WEBP": {"lossless": True}}
BEST: dict[str, dict[str, Any]] = {
    **LOSSLESS,
    "JPEG": {"quality": 100, "subsampling": 0},
    "HEIF": {"quality": 100, "chroma": 444},
    "AVIF": {"quality": 100},
}


@pytest.mark.parametrize("name", LOSSLESS)
def test_lossless_pictures_keep_every_pixel(name: str) -> None:
    picture = noise(31, 17)
    assert np.array_equal(decode(encode(picture, name, **LOSSLESS[name]), LIMITS), np.asarray(picture))


@pytest.mark.parametrize("name", ["JPEG", "WEBP", "GIF", "AVIF"])
def test_lossy_pictures_equal_pillows_own_reading(name: str) -> None:
    data = encode(noise(31, 17), name)
    assert np.array_equal(decode(data, LIMITS), np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))


def test_heic_is_near_what_was_encoded() -> None:
    picture = noise(64, 48)
    far = np.abs(decode(encode(picture, "HEIF", **BEST["HEIF"]), LIMITS).astype(int) - np.asarray(picture))
    assert far.mean() < 3


def corners(width_px: int, height_px: int) -> Image.Image:
    """A colour in each quarter: red, green, blue, white from the upper left, row by row."""
    picture = Image.new("RGB", (width_px, height_px))
    for index, colour in enumerate(((255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255))):
        left, top = (index % 2) * width_px // 2, (index // 2) * height_px // 2
        picture.paste(colour, (left, top, left + (width_px + 1) // 2, top + (height_px + 1) // 2))
    return picture


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("name", [name for name in BEST if name != "BMP"])  # which tells no orientation
def test_orientation_is_applied_once_in_every_format(name: str, orientation: int) -> None:
    upright = corners(96, 64)
    got = decode(oriented(upright, orientation, name, **BEST[name]), LIMITS).astype(int)
    assert got.shape == (64, 96, 3)
    for top, left in ((16, 24), (16, 72), (48, 24), (48, 72)):
        assert np.abs(got[top, left] - np.asarray(upright)[top, left]).max() < 24, (top, left)


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "I;16", "1"])
@pytest.mark.parametrize("orientation", [3, 6, 7])
def test_orientation_is_applied_in_every_mode(mode: str, orientation: int) -> None:
    upright = corners(24, 16)
    grey = np.asarray(upright.convert("L")).astype(np.uint16) << 8
    picture = Image.fromarray(grey) if mode == "I;16" else upright.convert(mode)
    plain = decode(encode(picture), LIMITS)
    for name in ("PNG", "TIFF"):
        if (mode, name) != ("RGBA", "TIFF"):
            assert np.array_equal(decode(oriented(picture, orientation, name), LIMITS), plain)


def test_exif_of_a_heic_does_not_turn_what_its_own_boxes_have_turned() -> None:
    entry = b"\x01\x12\0\3\0\0\0\1\0"
    data = oriented(corners(96, 64), 1, "HEIF", **BEST["HEIF"])
    assert data.count(entry + b"\1") == 1
    got = decode(data.replace(entry + b"\1", entry + b"\6"), LIMITS)
    assert got.shape == (64, 96, 3)
    assert np.abs(got[16, 24].astype(int) - (255, 0, 0)).max() < 24


@pytest.mark.parametrize("name", ["GIF", "WEBP", "PNG", "TIFF", "AVIF"])
def test_first_frame_of_an_animation_is_taken(name: str) -> None:
    frames = [Image.new("RGB", (16, 16), colour) for colour in ((255, 0, 0), (0, 255, 0))]
    data = encode(frames[0], name, save_all=True, append_images=frames[1:], **BEST.get(name, {}))
    assert np.abs(decode(data, LIMITS)[5, 5].astype(int) - (255, 0, 0)).max() < 4


def test_jpeg_that_carries_others_is_read_by_its_first() -> None:
    data = encode(Image.new("RGB", (16, 16), (255, 0, 0)), "MPO", save_all=True, append_images=[noise(16, 16)])
    assert np.abs(decode(data, LIMITS)[5, 5].astype(int) - (255, 0, 0)).max() < 4


# --- broken files ---


@pytest.mark.parametrize("name", EVERY_FORMAT)
def test_truncated_picture_is_an_error_of_ours(name: str) -> None:
    data = encode(noise(64, 64), name)
    for length in (len(data) // 2, len(data) * 3 // 4, len(data) - 40):
        with pytest.raises(InvalidPicture, match="truncated or damaged"):
            decode(data[:length], LIMITS)


def test_png_without_its_last_chunk_or_with_a_flipped_bit_is_damaged() -> None:
    data = encode(noise(64, 64))
    flipped = bytearray(data)
    flipped[data.index(b"IDAT") + 3_000] ^= 1
    for broken in (data[:-1], data[:-12], bytes(flipped)):
        with pytest.raises(InvalidPicture, match="truncated or damaged"):
            decode(broken, LIMITS)


@settings(max_examples=300, deadline=None)
@given(name=st.sampled_from(EVERY_FORMAT), place=st.floats(0, 1, exclude_max=True), value=st.integers(0, 255))
def test_damaged_byte_gives_a_picture_or_an_error_of_ours(name: str, place: float, value: int) -> None:
    data = bytearray(encode(noise(24, 18), name))
    data[int(place * len(data))] = value
    with contextlib.suppress(InvalidPicture, MediaTooLarge):
        assert decode(bytes(data), LIMITS).shape[2] == 3


@pytest.mark.parametrize("name", ["HEIF", "AVIF"])
def test_a_limit_of_the_decoders_own_is_damage_and_not_memory_run_out(name: str) -> None:
    """libheif says "Memory allocation error: Security limit exceeded" of a box that claims 257 extents: the picture's
    fault, which is no reason to end the process that decodes. Any byte of the boxes may be such a claim.
    """
    whole = encode(noise(24, 18), name)
    for place in range(whole.index(b"meta"), whole.index(b"mdat")):
        data = bytearray(whole)
        data[place] = 1
        with contextlib.suppress(InvalidPicture, MediaTooLarge):
            decode(bytes(data), LIMITS)


def test_error_never_carries_the_decoders_words() -> None:
    with pytest.raises(InvalidPicture) as caught:
        decode(encode(noise(64, 64), "JPEG")[:-200], LIMITS)
    assert str(caught.value) == (
        "invalid_picture: the picture starts as jpeg but is truncated or damaged, or of a kind that is not read; "
        "fix: send the whole, intact file, or convert it to 8-bit RGB"
    )


def test_tiff_of_samples_that_no_decoder_reads_is_refused() -> None:
    data = tiff(16, 16, b"\0" * 512, order=">", bits=(16,), photometric=0)
    with pytest.raises(InvalidPicture, match="of a kind that is not read"):
        decode(data, LIMITS)


@pytest.mark.parametrize("said_px", [(17, 16), (16, 15), (8, 8)])
def test_pixels_of_another_size_than_the_header_are_refused(said_px: tuple[int, int]) -> None:
    header = PictureHeader(format="png", width_px=said_px[0], height_px=said_px[1])
    with pytest.raises(InvalidPicture, match="another size than its header says"):
        decode_accepted(encode(noise(16, 16)), header, WHITE)


def test_turn_that_the_header_does_not_tell_is_refused() -> None:
    header = PictureHeader(format="tiff", width_px=24, height_px=16)
    with pytest.raises(InvalidPicture, match="another size than its header says"):
        decode_accepted(oriented(noise(24, 16).rotate(90, expand=True), 6, "TIFF"), header, WHITE)


def test_decoder_out_of_memory_is_no_damaged_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    from proteus.preprocess import decode as module

    def open_heic(_: bytes) -> Image.Image:
        raise RuntimeError("Memory allocation error: Security limit exceeded")

    monkeypatch.setattr(module, "OPENERS", {"heic": open_heic})
    with pytest.raises(MemoryError):
        decode_accepted(b"", PictureHeader(format="heic", width_px=8, height_px=8), WHITE)


# --- a smaller size asked for ---


@pytest.mark.parametrize("name", EVERY_FORMAT)
def test_smaller_size_is_met_exactly(name: str) -> None:
    data = encode(noise(402, 203), name)
    for target_px in ((402, 203), (401, 203), (101, 51), (50, 100), (8, 8), (40, 1)):
        assert decode(data, LIMITS, target_px).shape == (target_px[1], target_px[0], 3)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("name", ["JPEG", "PNG", "TIFF"])
def test_smaller_size_is_that_of_the_upright_picture(name: str, orientation: int) -> None:
    upright = corners(384, 256)
    got = decode(oriented(upright, orientation, name), LIMITS, (24, 16)).astype(int)
    assert got.shape == (16, 24, 3)
    for top, left in ((4, 6), (4, 18), (12, 6), (12, 18)):
        assert np.abs(got[top, left] - np.asarray(upright)[top * 16, left * 16]).max() < 24


def test_draft_of_a_jpeg_stays_near_the_resize_of_all_its_pixels() -> None:
    picture = noise(800, 600, 5)
    data = encode(picture, "JPEG", quality=95)
    whole = Image.fromarray(decode(data, LIMITS)).resize((100, 75), Image.Resampling.LANCZOS)
    far = np.abs(decode(data, LIMITS, (100, 75)).astype(int) - np.asarray(whole))
    assert far.mean() < 1 and far.max() <= 6


def test_without_a_size_no_draft_is_made() -> None:
    data = encode(noise(800, 600), "JPEG")
    assert np.array_equal(decode(data, LIMITS), np.asarray(Image.open(io.BytesIO(data))))
