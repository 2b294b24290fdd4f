"""Bytes of a medium to its header: the first bytes name the format, a table names its parser; nothing is decoded.

Every parser is bounded: it works on lengths, skips what it need not read, and stops at a cap of its own.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import TypeVar, get_args

from proteus.errors import InvalidMedia, InvalidPicture
from proteus.limits import AudioFormat, PictureFormat, VideoFormat
from proteus.media.avi import probe_avi
from proteus.media.bmp import probe_bmp
from proteus.media.damage import Damaged
from proteus.media.ebml import probe_webm
from proteus.media.flac import probe_flac
from proteus.media.gif import probe_gif
from proteus.media.header import MediaHeader, PictureHeader
from proteus.media.heif import probe_avif, probe_heic
from proteus.media.iso_media import probe_mp4
from proteus.media.jpeg import probe_jpeg
from proteus.media.mp3 import probe_mp3
from proteus.media.ogg import probe_ogg
from proteus.media.png import probe_png
from proteus.media.sniff import sniff
from proteus.media.tiff import probe_tiff
from proteus.media.wav import probe_wav
from proteus.media.webp import probe_webp

PICTURE_PROBES: Mapping[str, Callable[[memoryview], PictureHeader]] = {
    "png": probe_png,
    "jpeg": probe_jpeg,
    "webp": probe_webp,
    "gif": probe_gif,
    "bmp": probe_bmp,
    "tiff": probe_tiff,
    "heic": probe_heic,
    "avif": probe_avif,
}
PROBES: Mapping[str, Callable[[memoryview], MediaHeader]] = {
    **PICTURE_PROBES,
    "mp4": probe_mp4,
    "mov": probe_mp4,
    "webm": probe_webm,
    "avi": probe_avi,
    "wav": probe_wav,
    "flac": probe_flac,
    "mp3": probe_mp3,
    "ogg": probe_ogg,
}
_PICTURES: tuple[str, ...] = get_args(PictureFormat)
_VIDEOS: tuple[str, ...] = get_args(VideoFormat)
_AUDIO: tuple[str, ...] = get_args(AudioFormat)
_Header = TypeVar("_Header", PictureHeader, MediaHeader)


def probe(data: bytes) -> MediaHeader:
    """The header of a picture, video or audio file, whatever its name said.

    Raises InvalidPicture for a broken picture and InvalidMedia for anything else that cannot be used.
    """
    return _parsed(data, PROBES, InvalidMedia, "picture, video or audio")


def probe_picture(data: bytes) -> PictureHeader:
    """As `probe`, where only a picture will do: raises InvalidPicture naming what was sent instead."""
    return _parsed(data, PICTURE_PROBES, InvalidPicture, "picture")


def broken(name: str) -> InvalidMedia:
    """The error for bytes that start as a format we read and go wrong later."""
    error = InvalidPicture if name in _PICTURES else InvalidMedia
    return error(
        f"the {_noun(name).split(maxsplit=1)[1]} starts as {name} but is truncated or damaged",
        fix="send the whole, intact file",
    )


def _parsed(
    data: bytes, parsers: Mapping[str, Callable[[memoryview], _Header]], error: type[InvalidMedia], kind: str
) -> _Header:
    if not data:
        raise error(f"the {kind} is empty (0 bytes)", fix=f"send the bytes of a {kind} file")
    name = sniff(data)
    if name is None or name not in parsers:
        what = f"bytes that are no known {kind}" if name is None else f"{_noun(name)} of format {name}"
        raise error(what, limit=f"formats read: {', '.join(parsers)}", fix="convert it to one of these formats")
    try:
        return parsers[name](memoryview(data))
    except (Damaged, struct.error, IndexError, StopIteration) as cause:
        raise broken(name) from cause


def _noun(name: str) -> str:
    nouns = {"a picture": _PICTURES, "a video": _VIDEOS, "an audio clip": _AUDIO}
    return next((noun for noun, names in nouns.items() if name in names), "a file")
