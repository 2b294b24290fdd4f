"""Header of AVI video (RIFF; Microsoft's AVI RIFF file reference, OpenDML for files of more than one RIFF).

Frames are counted by walking over the chunks of `movi`: the header's own count is a promise that recorders break.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from proteus.errors import InvalidMedia
from proteus.media.damage import Damaged
from proteus.media.fields import letters, number, too_many
from proteus.media.header import VideoHeader

MAX_CHUNKS = 200_000  # walked over in one file
OPENED = frozenset({b"RIFF", b"LIST"})
_HEAD = struct.Struct("<4sI")
HEADER_LISTS = frozenset({b"AVI ", b"AVIX", b"hdrl", b"strl", b"movi", b"rec "})


class Chunk(NamedTuple):
    kind: bytes  # of a list that is walked into, its form
    start: int  # of the content
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    index: int
    scale: int  # seconds per frame = scale / rate
    rate: int
    num_told: int  # frames by the header
    codec: str
    width_px: int
    height_px: int


def probe_avi(data: memoryview) -> VideoHeader:
    """Header of an AVI video.

    An empty chunk shows the frame before once more: it lasts, and is no frame. Raises Damaged for a broken file,
    InvalidMedia on a file without pictures and on more chunks than are counted.
    """
    chunks = _chunks(data)
    stream = _picture_stream(data, chunks)
    names = (b"%02ddc" % stream.index, b"%02ddb" % stream.index)
    sizes = [chunk.end - chunk.start for chunk in chunks if chunk.kind in names]
    lasting = max(len(sizes), stream.num_told)
    return VideoHeader(
        format="avi",
        width_px=stream.width_px,
        height_px=stream.height_px,
        num_frames=len(sizes) - sizes.count(0),
        duration_s=lasting * stream.scale / stream.rate if stream.rate else 0.0,
        codec=stream.codec,
    )


def _picture_stream(data: memoryview, chunks: Iterator[Chunk]) -> Stream:
    """Read up to the form of the first picture stream; raises Damaged when there is no stream at all."""
    media: list[str] = []
    head: Chunk | None = None
    for chunk in chunks:
        if chunk.kind == b"strh":
            head = chunk
            media.append(letters(data, chunk.start))
        elif chunk.kind == b"strf" and head is not None and media[-1] == "vids":
            return _read_stream(data, head, chunk, len(media) - 1)
    if not media:
        raise Damaged
    what = "an avi file with sound and no picture" if "auds" in media else "an avi file without a video stream"
    raise InvalidMedia(what, fix="send a file with a video stream")


def _chunks(data: memoryview) -> Iterator[Chunk]:
    """Every chunk of the file, those of the lists we know in their place; raises Damaged at one that is cut."""
    at = 0
    for _ in range(MAX_CHUNKS):
        if at + 8 > len(data):
            return
        kind, size = _HEAD.unpack_from(data, at)
        start, end = at + 8, at + 8 + size
        form = bytes(data[start : start + 4]) if kind in OPENED else b""
        if end > len(data):
            raise Damaged
        if form in HEADER_LISTS:
            at = start + 4
        else:
            at = end + size % 2
            yield Chunk(kind, start, end)
    raise too_many("video", "chunks", MAX_CHUNKS)


def _read_stream(data: memoryview, head: Chunk, form: Chunk, index: int) -> Stream:
    """AVISTREAMHEADER and BITMAPINFOHEADER; a picture stored top down has a negative height."""
    return Stream(
        index=index,
        scale=number(data, head.start + 20, 4, "little"),
        rate=number(data, head.start + 24, 4, "little"),
        num_told=number(data, head.start + 32, 4, "little"),
        codec=letters(data, form.start + 16),
        width_px=number(data, form.start + 4, 4, "little"),
        height_px=abs(number(data, form.start + 8, 4, "little", signed=True)),
    )
