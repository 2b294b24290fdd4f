"""Which format a file is of, by its first bytes alone: a name or a declared type is never asked.

Formats that we do not read have names here too, so that a refusal can say what was sent.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

# (offset, bytes, name); the first that fits wins.
SIGNATURES: tuple[tuple[int, bytes, str], ...] = (
    (12, b"CgBI", "apple's own png"),  # inside iPhone apps; no decoder but Apple's reads it
    (0, b"\x89PNG\r\n\x1a\n", "png"),
    (0, b"\xff\xd8\xff\xf7", "jpeg-ls"),
    (0, b"\xff\xd8\xff", "jpeg"),
    (0, b"GIF87a", "gif"),
    (0, b"GIF89a", "gif"),
    (0, b"BM", "bmp"),
    (0, b"II*\x00", "tiff"),
    (0, b"MM\x00*", "tiff"),
    (0, b"II+\x00", "tiff"),
    (0, b"MM\x00+", "big-endian bigtiff"),
    (0, b"fLaC", "flac"),
    (0, b"OggS", "ogg"),
    (0, b"%PDF", "pdf"),
    (0, b"<svg", "svg"),
    (0, b"\xff\x0a", "jpeg xl"),
    (0, b"\x00\x00\x00\x0cJXL ", "jpeg xl"),
    (0, b"\x00\x00\x00\x0cjP  ", "jpeg 2000"),
    (0, b"\xff\x4f\xff\x51", "jpeg 2000"),
    (0, b"8BPS", "psd"),
    (0, b"\x00\x00\x01\x00", "ico"),
    (0, b"\x00\x00\x02\x00", "cur"),
    (0, b"qoif", "qoi"),
    (0, b"DDS ", "dds"),
    (0, b"\x76\x2f\x31\x01", "openexr"),
    (0, b"#?RADIANCE", "radiance hdr"),
    (0, b"P4\n", "pbm"),
    (0, b"P5\n", "pgm"),
    (0, b"P6\n", "ppm"),
    (0, b"FLV\x01", "flv"),
    (0, b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", "asf (wmv, wma)"),
    (0, b"\x00\x00\x01\xba", "mpeg program stream"),
    (0, b"MThd", "midi"),
    (0, b"#!AMR", "amr"),
    (8, b"AIFF", "aiff"),
    (8, b"AIFC", "aiff"),
    (0, b"PK\x03\x04", "zip"),
    (0, b"\x1f\x8b\x08", "gzip"),
    (0, b"7z\xbc\xaf\x27\x1c", "7z"),
    (0, b"Rar!\x1a\x07", "rar"),
    (0, b"\x7fELF", "elf"),
    (0, b"data:", "data uri (text)"),
    (0, b"iVBORw0K", "base64 text"),
    (0, b"/9j/", "base64 text"),
    (0, b"R0lGOD", "base64 text"),
    (0, b"UklGR", "base64 text"),
)
RIFF_FORMS = {b"WEBP": "webp", b"AVI ": "avi", b"WAVE": "wav"}
AVIF_BRANDS = {b"avif", b"avis"}
HEIC_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"}
HEIF_BRANDS = {b"mif1", b"mif2", b"msf1", b"miaf"}  # of any codec: the compatible brands tell which
RAW_BRANDS = {b"crx ": "canon raw", b"jxl ": "jpeg xl", b"jp2 ": "jpeg 2000", b"jpx ": "jpeg 2000"}
QUICKTIME_BOXES = {b"moov", b"mdat", b"wide", b"pnot"}  # a file older than `ftyp` starts with one
MAX_BRANDS = 64
MAX_TEXT = 1024  # bytes of a text looked at


def sniff(data: bytes | memoryview) -> str | None:
    """Name of the format that `data` starts as, one we read or not; None when it is none of those known."""
    head = bytes(data[:MAX_TEXT])
    for offset, magic, name in SIGNATURES:
        if head.startswith(magic, offset):
            return name
    return next((found for told in FAMILIES if (found := told(head)) is not None), None)


def _iso_media(head: bytes) -> str | None:
    """ISO/IEC 14496-12 §4.3: the major brand names the format, or the first compatible one that says more."""
    kind = head[4:8]
    if kind != b"ftyp":
        return "mov" if kind in QUICKTIME_BOXES else None
    major = head[8:12]
    if major in AVIF_BRANDS:
        return "avif"
    if major in HEIC_BRANDS:
        return "heic"
    if major in HEIF_BRANDS:
        end = min(int.from_bytes(head[:4], "big"), 16 + 4 * MAX_BRANDS)
        others = {head[at : at + 4] for at in range(16, end, 4)}
        return "avif" if others & AVIF_BRANDS else "heic"
    return "mov" if major == b"qt  " else RAW_BRANDS.get(major, "mp4")


def _riff(head: bytes) -> str | None:
    return RIFF_FORMS.get(head[8:12]) if head[:4] in (b"RIFF", b"RF64", b"BW64") else None


def _matroska(head: bytes) -> str | None:
    if not head.startswith(b"\x1a\x45\xdf\xa3"):
        return None
    doc_type = head.find(b"\x42\x82", 4, 64)
    return "webm" if doc_type > 0 and head.startswith(b"webm", doc_type + 3) else "matroska"


def _mpeg_audio(head: bytes) -> str | None:
    """An ID3v2 tag, or the sync word of a frame of layer III; layer 0 is the AAC of ADTS."""
    if head.startswith(b"ID3"):
        return "mp3"
    if len(head) < 4:
        return None
    (word,) = struct.unpack_from(">I", head)
    if word >> 21 != 0x7FF:
        return None
    layer, bitrate, rate = word >> 17 & 3, word >> 12 & 15, word >> 10 & 3
    if layer == 0:
        return "aac"
    return "mp3" if layer == 1 and bitrate != 15 and rate != 3 and word >> 19 & 3 != 1 else None


def _mpeg_transport(head: bytes) -> str | None:
    return "mpeg transport stream" if head[:1] == b"G" and head[188:189] == b"G" and head[376:377] == b"G" else None


def _text(head: bytes) -> str | None:
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if text.startswith((b"<!doctype html", b"<html")):
        return "html"
    if text.startswith((b"<svg", b"<?xml", b"<!doctype svg")):
        return "svg" if b"<svg" in text else "xml"
    return "json" if text.startswith((b'{"', b"[{")) else None


FAMILIES: tuple[Callable[[bytes], str | None], ...] = (
    _iso_media,
    _riff,
    _matroska,
    _mpeg_audio,
    _mpeg_transport,
    _text,
)
