from __future__ import annotations

import pytest

from proteus.media.sniff import sniff

FTYP = b"\0\0\0\x1cftyp"


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"\x89PNG\r\n\x1a\n", "png"),
        (b"\xff\xd8\xff\xe0", "jpeg"),
        (b"GIF87a", "gif"),
        (b"GIF89a", "gif"),
        (b"BM", "bmp"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "webp"),
        (b"RIFF\0\0\0\0WAVEfmt ", "wav"),
        (b"RF64\xff\xff\xff\xffWAVEds64", "wav"),
        (b"RIFF\0\0\0\0AVI LIST", "avi"),
        (b"II*\0", "tiff"),
        (b"MM\0*", "tiff"),
        (b"II+\0\x08\0\0\0", "tiff"),
        (FTYP + b"avif\0\0\0\0", "avif"),
        (FTYP + b"avis\0\0\0\0", "avif"),
        (FTYP + b"heic\0\0\0\0", "heic"),
        (FTYP + b"hevc\0\0\0\0", "heic"),
        (FTYP + b"mif1\0\0\0\0mif1heic", "heic"),
        (FTYP + b"mif1\0\0\0\0mif1avif", "avif"),
        (FTYP + b"msf1\0\0\0\0avis", "avif"),
        (FTYP + b"qt  \0\0\0\0", "mov"),
        (b"\0\0\0\x08wide\0\0\0\0mdat", "mov"),
        (FTYP + b"isom\0\0\0\0", "mp4"),
        (FTYP + b"M4A \0\0\0\0", "mp4"),
        (b"\x1a\x45\xdf\xa3\x9f\x42\x86\x81\x01\x42\x82\x84webm", "webm"),
        (b"ID3\x04\0\0", "mp3"),
        (b"\xff\xfb\x90\x64", "mp3"),
        (b"\xff\xf3\x44\xc4", "mp3"),
        (b"fLaC", "flac"),
        (b"OggS\0", "ogg"),
    ],
)
def test_format_that_we_read_is_named(data: bytes, name: str) -> None:
    assert sniff(data) == name
    assert sniff(memoryview(data)) == name
    assert sniff(data + bytes(5_000)) == name


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"%PDF-1.7", "pdf"),
        (b"<svg xmlns='x'>", "svg"),
        (b"\xef\xbb\xbf <?xml version='1.0'?>\n<!-- x --><svg>", "svg"),
        (b"<?xml version='1.0'?><rss>", "xml"),
        (b"\n<!DOCTYPE html><title>404", "html"),
        (b"<HTML>", "html"),
        (b'{"error": "not found"}', "json"),
        (b"\xff\x0a", "jpeg xl"),
        (b"\0\0\0\x0cJXL \r\n\x87\n", "jpeg xl"),
        (b"\0\0\0\x0cjP  \r\n\x87\n", "jpeg 2000"),
        (b"\xff\x4f\xff\x51", "jpeg 2000"),
        (b"\xff\xd8\xff\xf7", "jpeg-ls"),
        (b"8BPS\0\1", "psd"),
        (b"\0\0\1\0\1\0", "ico"),
        (b"MM\0+\0\x08\0\0", "big-endian bigtiff"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\4CgBI", "apple's own png"),
        (FTYP + b"crx \0\0\0\1", "canon raw"),
        (b"\x1a\x45\xdf\xa3\xa3\x42\x82\x88matroska", "matroska"),
        (b"\xff\xf1\x50\x80", "aac"),
        (b"PK\x03\x04", "zip"),
        (b"G" + bytes(187) + b"G" + bytes(187) + b"G", "mpeg transport stream"),
        (b"data:image/png;base64,iVBORw0K", "data uri (text)"),
        (b"iVBORw0KGgoAAAANSUhEUgAA", "base64 text"),
        (b"/9j/4AAQSkZJRgABAQ", "base64 text"),
    ],
)
def test_format_that_we_do_not_read_is_named_for_the_refusal(data: bytes, name: str) -> None:
    assert sniff(data) == name


@pytest.mark.parametrize(
    "data",
    [b"", b"\0", b"hello", b"\x89PNG", b"RIFF\0\0\0\0ACON", b"\xff\xff\xff\xff", b"\xff\xfb\xf0\0", b"\xff\xeb\x90\0"],
)
def test_bytes_of_no_known_format_have_no_name(data: bytes) -> None:
    assert sniff(data) is None


def test_brands_are_read_within_their_box_only() -> None:
    assert sniff(b"\0\0\0\x14ftypmif1\0\0\0\0mif1" + b"avif") == "heic"
