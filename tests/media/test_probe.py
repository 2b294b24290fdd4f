from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proteus.errors import InvalidMedia, InvalidPicture, MediaTooLarge, ProteusError
from proteus.media.header import PictureHeader
from proteus.media.probe import PICTURE_PROBES, PROBES, probe, probe_picture
from tests.media import corpus_pictures as made
from tests.media.corpus_pictures import picture, png_chunk, png_of_one_bit, saved, seen

MAX_BYTES = 10 << 20  # of one picture in the demo's contract
FILES = cache(lambda: dict(made.animations()) | dict(made.turns()))


@pytest.mark.parametrize("some", [made.stills, made.with_options, made.turns, made.animations])
def test_header_is_what_the_decoder_comes_to(some: Callable[[], Iterator[tuple[str, bytes]]]) -> None:
    for name, data in some():
        header, after = probe_picture(data), seen(data)
        told = (header.upright_px, header.mode, header.num_frames)
        assert told == (after.upright_px, after.mode, after.num_frames), name


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(sorted(made.MODES)), st.integers(1, 300), st.integers(1, 300))
def test_sides_of_any_length_are_read(name: str, width_px: int, height_px: int) -> None:
    mode = made.MODES[name][-1]
    header = probe_picture(saved(picture(mode, (width_px, height_px)), name))
    assert header.upright_px == (width_px, height_px)


@pytest.mark.parametrize(
    ("name", "mark", "behind"),
    [
        ("PNG", b"IDAT", 4),
        ("JPEG", b"\xff\xda", 14),
        ("WEBP", b"VP8 ", 18),
        ("GIF", b",\0\0\0\0", 11),
        ("HEIF", b"mdat", 4),
        ("AVIF", b"mdat", 4),
        ("BMP", b"BM", 54),
    ],
)
def test_no_pixel_is_decoded(name: str, mark: bytes, behind: int) -> None:
    data = saved(picture("RGB", (67, 35)), name)
    start = data.index(mark) + behind
    garbage = random.Random(1).randbytes(len(data) - start)
    assert probe(data[:start] + garbage) == probe(data)
    with pytest.raises((OSError, SyntaxError, ValueError, RuntimeError, EOFError), match=r"."):
        seen(data[:start] + garbage[:9])


def test_no_pixel_of_a_tiff_is_decoded() -> None:
    data = bytearray(saved(picture("RGB", (67, 35)), "TIFF", compression="tiff_lzw"))
    header = probe(bytes(data))
    (directory,) = struct.unpack_from("<I", data, 4)
    garbage = random.Random(1).randbytes(200)
    data[8:208] = garbage
    assert directory > 208
    assert probe(bytes(data)) == header


@pytest.mark.parametrize("side_px", [9_400, 13_000, 13_400])
def test_bomb_tells_its_size_at_once(side_px: int) -> None:
    data = png_of_one_bit(side_px)
    assert len(data) < 25_000
    assert probe(data) == PictureHeader(format="png", width_px=side_px, height_px=side_px, mode="1")


def test_truncated_jpeg_still_tells_its_size() -> None:
    data = saved(picture("RGB", (300, 200)), "JPEG")
    assert probe(data[:-512]) == probe(data)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "the picture is empty (0 bytes)"),
        (b"hello, I am no picture", "bytes that are no known picture"),
        (b"\x89PNG", "bytes that are no known picture"),
        (b"%PDF-1.7", "a file of format pdf"),
        (b"\0\0\0\x1cftypisom\0\0\0\0", "a video of format mp4"),
        (b"RIFF\0\0\0\0WAVEfmt ", "an audio clip of format wav"),
        (b"\x89PNG\r\n\x1a\n", "the picture starts as png but is truncated or damaged"),
        (b"\xff\xd8\xff\xe0", "the picture starts as jpeg but is truncated or damaged"),
        (b"RIFF\0\0\0\0WEBP", "the picture starts as webp but is truncated or damaged"),
        (b"GIF89a", "the picture starts as gif but is truncated or damaged"),
        (b"BM", "the picture starts as bmp but is truncated or damaged"),
        (b"II*\0", "the picture starts as tiff but is truncated or damaged"),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "the picture starts as heic but is truncated or damaged"),
        (b"\0\0\0\x18ftypavif\0\0\0\0mif1avif", "the picture starts as avif but is truncated or damaged"),
    ],
)
def test_what_is_no_picture_is_refused_in_fixed_words(data: bytes, what: str) -> None:
    with pytest.raises(InvalidPicture) as caught:
        probe_picture(data)
    assert caught.value.what == what
    assert caught.value.fix is not None


def test_refusal_of_a_format_lists_those_that_are_read() -> None:
    with pytest.raises(InvalidPicture, match="formats read: png, jpeg, webp, gif, bmp, tiff, heic, avif"):
        probe_picture(b"%PDF-1.7")
    with pytest.raises(InvalidMedia, match="a file of format pdf; limit: formats read: png, .*, mp4, .*, ogg"):
        probe(b"%PDF-1.7")
    with pytest.raises(InvalidMedia, match=r"the picture, video or audio is empty \(0 bytes\)"):
        probe(b"")
    assert PROBES.keys() > PICTURE_PROBES.keys()


def test_every_cut_of_a_picture_has_a_header_or_an_error_of_ours() -> None:
    for data in (data for name, data in FILES().items() if name.endswith(("RGB-2 frames", "-6"))):
        for length in (*range(min(len(data), 600)), *range(600, len(data), 211)):
            _outcome(data[:length])


def _outcome(data: bytes) -> PictureHeader | ProteusError:
    try:
        return probe_picture(data)
    except (InvalidPicture, MediaTooLarge) as error:
        return error


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_changed_bytes_have_a_header_or_an_error_of_ours(draw: st.DataObject) -> None:
    data = bytearray(draw.draw(st.sampled_from(list(FILES().values()))))
    places = st.integers(0, min(len(data), draw.draw(st.sampled_from((64, 600, 1 << 20)))) - 1)
    for place, value in draw.draw(st.lists(st.tuples(places, st.integers(0, 255)), max_size=8)):
        data[place] = value
    outcome = _outcome(bytes(data))
    if isinstance(outcome, PictureHeader):
        assert outcome.width_px > 0
        assert outcome.height_px > 0
        assert outcome.num_frames > 0
        assert outcome.orientation in range(1, 9)


@given(st.sampled_from(sorted(PICTURE_PROBES)), st.binary(max_size=200))
def test_random_bytes_behind_a_signature_have_a_header_or_an_error_of_ours(name: str, rest: bytes) -> None:
    starts = {
        "png": b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR",
        "jpeg": b"\xff\xd8\xff",
        "webp": b"RIFF\xff\0\0\0WEBPVP8X",
        "gif": b"GIF89a",
        "bmp": b"BM" + bytes(12) + b"\x28\0\0\0",
        "tiff": b"II*\0\x08\0\0\0",
        "heic": b"\0\0\0\x10ftypheic\0\0\0\0\0\0\0\xffmeta\0\0\0\0",
        "avif": b"\0\0\0\x10ftypavis\0\0\0\0\0\0\0\xffmoov\0\0\0\xffoops",
    }
    _outcome(starts[name] + rest)


def _repeated(head: bytes, unit: bytes) -> bytes:
    return head + unit * ((MAX_BYTES - len(head)) // len(unit))


PNG_HEAD = b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", struct.pack(">IIBBBBB", 67, 35, 8, 2, 0, 0, 0))
PACKED = zlib.compress(b" " * 3_000_000)
GIF_HEAD = b"GIF89a" + struct.pack("<HHBBB", 67, 35, 0, 0, 0)


@pytest.mark.parametrize(
    "data",
    [
        _repeated(PNG_HEAD, png_chunk(b"teXt", b"x")),
        _repeated(PNG_HEAD, png_chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + PACKED)),
        _repeated(PNG_HEAD, png_chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + b"tiff:Orientation" * 4_000)),
        _repeated(b"\xff\xd8", b"\xff\xe1\0\2"),
        _repeated(b"\xff\xd8", b"\xff"),
        _repeated(b"\xff\xd8\xff\xe1\0\2", b"a"),
        _repeated(b"\xff\xd8\xff\xe1\0\2", b"\xff\xd0"),
        _repeated(GIF_HEAD, b"!\xf9\0"),
        _repeated(GIF_HEAD, b",\0\0\0\0\1\0\1\0\0\2\0"),
        _repeated(GIF_HEAD + b",\0\0\0\0\1\0\1\0\0\2", b"\1a"),
        _repeated(GIF_HEAD + b",\0\0\0\0\1\0\1\0\0\2", b"\1a" * 17 + b"\2aa"),
        b"II*\0\x08\0\0\0" + struct.pack("<H", 65_535) + struct.pack("<HHII", 256, 3, 1, 67) * 65_535,
        b"II*\0\x08\0\0\0" + struct.pack("<HHHIIHHIII", 2, 256, 3, 1, 67, 257, 3, 1, 35, 8),
        _repeated(b"RIFF\xff\xff\xff\xffWEBPVP8X\x0a\0\0\0\2\0\0\0\x20\0\0\x20\0\0", b"ANMF\0\0\0\0"),
        _repeated(b"\0\0\0\x10ftypheic\0\0\0\0", b"\0\0\0\x08free"),
        _repeated(b"\0\0\0\x10ftypheic\0\0\0\0\0\0\0\0meta\0\0\0\0", b"\0\0\0\x08iprp"),
        _repeated(b"\0\0\0\x10ftypavis\0\0\0\0\0\0\0\0moov", b"\0\0\0\x08trak"),
    ],
    ids=lambda data: f"{data[:24]!r}",
)
@pytest.mark.timeout(10)
def test_file_made_to_keep_us_busy_ends(data: bytes) -> None:
    _outcome(data)
