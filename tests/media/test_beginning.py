"""Whatever a beginning tells is what the whole file tells."""

from __future__ import annotations

import io
import struct
import zlib

import pytest

from proteus.errors import InvalidPicture
from proteus.media.beginning import probe_beginning
from proteus.media.header import PictureHeader
from proteus.media.probe import probe_picture
from tests.media.corpus_pictures import corpus, picture, saved

CUTS = 40  # tries with each file
END_OF_IHDR = 33  # in every PNG


def planned_by(header: PictureHeader) -> tuple[str, tuple[int, int], bool]:
    return header.format, header.upright_px, header.num_frames > 1


def test_a_beginning_tells_what_the_whole_file_does_or_nothing() -> None:
    told = set()
    for name, data in corpus():
        whole = planned_by(probe_picture(data))
        for cut in range(1, len(data), max(1, len(data) // CUTS)):
            try:
                header = probe_beginning(data[:cut])
            except InvalidPicture:
                continue
            assert planned_by(header) == whole, (name, cut)
            told.add(header.format)
    assert told == {"png", "jpeg", "bmp", "webp", "heic", "avif"}


def test_a_comment_about_image_data_is_none() -> None:
    file = io.BytesIO()
    frames = [picture("RGB", (40, 30)), picture("RGB", (40, 30)).rotate(180)]
    frames[0].save(file, "PNG", save_all=True, append_images=frames[1:])
    head, rest = file.getvalue()[:END_OF_IHDR], file.getvalue()[END_OF_IHDR:]
    body = b"tEXtComment\0IDAT"
    comment = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    assert probe_picture(head + comment + rest).num_frames == 2
    with pytest.raises(InvalidPicture, match="send more of the file"):
        probe_beginning(head + comment)
    assert probe_beginning(head + comment + rest[: rest.index(b"IDAT") + 4]).num_frames == 2


@pytest.mark.parametrize("name", ["PNG", "JPEG", "BMP", "WEBP"])
def test_a_kilobyte_is_enough_of_a_large_picture(name: str) -> None:
    data = saved(picture("RGB", (900, 700)), name)
    assert probe_beginning(data[:1024]).upright_px == (900, 700)


@pytest.mark.parametrize("name", ["GIF", "TIFF"])
def test_formats_that_count_frames_to_the_end_say_that_they_need_more(name: str) -> None:
    data = saved(picture("RGB", (300, 200)), name)
    with pytest.raises(InvalidPicture, match="send more of the file"):
        probe_beginning(data[: len(data) // 2])


def test_what_is_no_picture_is_not_asked_for_more() -> None:
    with pytest.raises(InvalidPicture, match="no known picture"):
        probe_beginning(b"hello, I am no picture at all")
