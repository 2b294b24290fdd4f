"""Header of WebM video (EBML, RFC 8794; Matroska, RFC 9559): size and times from the head, frames by walking the
clusters over their blocks, whose payloads are skipped by size. Live streams, whose sizes are unknown, are walked alike.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from proteus.errors import InvalidMedia
from proteus.media.damage import Damaged
from proteus.media.fields import number, too_many
from proteus.media.header import VideoHeader

MAX_ELEMENTS = 200_000  # walked over in one file
MAX_FIELDS = 256  # of one parent: the head, a track
VIDEO_TRACK, AUDIO_TRACK = 1, 2

HEAD, DOC_TYPE = 0x1A45DFA3, 0x4282
SEGMENT, INFO, TRACKS, CLUSTER = 0x18538067, 0x1549A966, 0x1654AE6B, 0x1F43B675
NS_PER_TICK, DURATION = 0x2AD7B1, 0x4489
TRACK, TRACK_NUMBER, TRACK_TYPE, CODEC_ID, DEFAULT_DURATION = 0xAE, 0xD7, 0x83, 0x86, 0x23E383
VIDEO, PIXEL_WIDTH, PIXEL_HEIGHT = 0xE0, 0xB0, 0xBA
CLUSTER_TICK, SIMPLE_BLOCK, BLOCK_GROUP, BLOCK = 0xE7, 0xA3, 0xA0, 0xA1
OPENED = frozenset({SEGMENT, CLUSTER, BLOCK_GROUP})  # walked into; all others are stepped over
HEAD_BYTES = 12  # the longest kind and size; also covers the head of a block
INVISIBLE, LACED = 0x08, 0x06  # flags of a block


class Element(NamedTuple):
    kind: int
    start: int  # of the content
    end: int | None  # None: unknown, a live stream


def probe_webm(data: memoryview) -> VideoHeader:
    """Header of a WebM video.

    The duration is that of the file's head, or where the blocks go on for longer or the head tells none, up to the end
    of the last block. Raises Damaged for a broken file, InvalidMedia on Matroska that is not WebM, on a file
    without pictures, and on more elements than are counted.
    """
    head = read_element(data, 0)
    if head.kind != HEAD or head.end is None:
        raise Damaged
    doc_type = _text(data, _inside(data, head).get(DOC_TYPE))
    if doc_type != "webm":
        what = "a Matroska file that is not WebM" if doc_type == "matroska" else "an EBML file that is not WebM"
        raise InvalidMedia(what, fix="convert the video to webm or mp4")
    return _Segment(data, head.end).video_header()


def read_element(data: memoryview, at: int) -> Element:
    """The element at `at`; raises Damaged where it, its known size included, does not fit the data."""
    head = bytes(data[at : at + HEAD_BYTES])
    kind_bytes = 9 - head[0].bit_length() if head else HEAD_BYTES
    size_bytes = 9 - head[kind_bytes].bit_length() if kind_bytes < len(head) else HEAD_BYTES
    length = kind_bytes + size_bytes
    if kind_bytes > 4 or size_bytes > 8 or length > len(head):
        raise Damaged
    kind, start = int.from_bytes(head[:kind_bytes], "big"), at + length
    unknown = (1 << 7 * size_bytes) - 1
    size = int.from_bytes(head[kind_bytes:length], "big") & unknown
    if size == unknown:
        return Element(kind, start, None)
    if start + size > len(data):
        raise Damaged
    return Element(kind, start, start + size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    track_number: int
    codec: str
    width_px: int
    height_px: int
    ns_per_frame: int  # 0: not told


class _Segment:
    """The walk over one file; `frames` and the times grow as blocks pass by."""

    def __init__(self, data: memoryview, start: int) -> None:
        self.data, self.start = data, start
        self.is_told, self.ns_per_tick, self.told_ticks = False, 1_000_000, 0.0
        self.track: Track | None = None
        self.num_frames = self.cluster_tick = 0
        self.first_tick: int | None = None
        self.last_tick = 0

    def video_header(self) -> VideoHeader:
        for element in self._elements():
            self._take(element)
        if self.track is None:
            raise Damaged
        return VideoHeader(
            format="webm",
            width_px=self.track.width_px,
            height_px=self.track.height_px,
            num_frames=self.num_frames,
            duration_s=self._duration_s(self.track),
            codec=self.track.codec,
        )

    def _elements(self) -> Iterator[Element]:
        """Every element of the segment, those of clusters and block groups in their place."""
        at, end = self.start, len(self.data)
        for _ in range(MAX_ELEMENTS):
            if at >= end:
                return
            element = read_element(self.data, at)
            if element.kind == SEGMENT and element.end is not None:
                end = element.end
            if element.kind in OPENED:
                at = element.start
            elif element.end is None:
                raise Damaged
            else:
                at = element.end
            yield element
        raise too_many("video", "elements", MAX_ELEMENTS)

    def _take(self, element: Element) -> None:
        if element.kind in (SIMPLE_BLOCK, BLOCK):
            self._take_block(element)
        elif element.kind == CLUSTER_TICK:
            self.cluster_tick = _whole(self.data, element)
        elif element.kind == INFO and not self.is_told:
            self.is_told = True
            info = _inside(self.data, element)
            self.ns_per_tick = _whole(self.data, info.get(NS_PER_TICK), 1_000_000)
            self.told_ticks = _real(self.data, info.get(DURATION))
        elif element.kind == TRACKS and self.track is None:
            self.track = _picture_track(self.data, element)

    def _take_block(self, block: Element) -> None:
        """Count the frames of a block of our track; a laced block holds several."""
        head = bytes(self.data[block.start : block.start + HEAD_BYTES])
        track_bytes = 9 - head[0].bit_length() if head else HEAD_BYTES
        if self.track is None or track_bytes + 3 > len(head):
            raise Damaged
        flags = head[track_bytes + 2]
        track_number = int.from_bytes(head[:track_bytes], "big") & (1 << 7 * track_bytes) - 1
        if track_number != self.track.track_number or flags & INVISIBLE:
            return
        self.num_frames += sum(head[track_bytes + 3 : track_bytes + 4]) + 1 if flags & LACED else 1
        tick = self.cluster_tick + int.from_bytes(head[track_bytes : track_bytes + 2], "big", signed=True)
        self.first_tick = tick if self.first_tick is None else min(self.first_tick, tick)
        self.last_tick = max(self.last_tick, tick)

    def _duration_s(self, track: Track) -> float:
        seen_ns = (self.last_tick - (self.first_tick or 0)) * self.ns_per_tick
        told_ns = self.told_ticks * self.ns_per_tick
        if told_ns <= seen_ns:
            told_ns = seen_ns + (track.ns_per_frame or seen_ns / max(1, self.num_frames - 1))
        if math.isinf(told_ns):
            raise Damaged
        return told_ns / 1e9


def _picture_track(data: memoryview, tracks: Element) -> Track:
    types = set()
    for element in _children(data, tracks):
        fields = _inside(data, element) if element.kind == TRACK else {}
        types.add(_whole(data, fields.get(TRACK_TYPE)))
        if VIDEO_TRACK not in types:
            continue
        picture = _inside(data, fields[VIDEO]) if VIDEO in fields else {}
        return Track(
            track_number=_whole(data, fields.get(TRACK_NUMBER)),
            codec=_text(data, fields.get(CODEC_ID)),
            width_px=_whole(data, picture.get(PIXEL_WIDTH)),
            height_px=_whole(data, picture.get(PIXEL_HEIGHT)),
            ns_per_frame=_whole(data, fields.get(DEFAULT_DURATION)),
        )
    what = "a webm file with sound and no picture" if AUDIO_TRACK in types else "a webm file without a video track"
    raise InvalidMedia(what, fix="send a file with a video track")


def _children(data: memoryview, parent: Element) -> Iterator[Element]:
    at, end = parent.start, parent.end
    if end is None:
        raise Damaged
    for _ in range(MAX_FIELDS):
        if at >= end:
            return
        element = read_element(data, at)
        if element.end is None or element.end > end:
            raise Damaged
        yield element
        at = element.end
    raise too_many("video", "fields", MAX_FIELDS)


def _inside(data: memoryview, parent: Element) -> dict[int, Element]:
    """The first element of each kind in `parent`."""
    found: dict[int, Element] = {}
    for element in _children(data, parent):
        found.setdefault(element.kind, element)
    return found


def _whole(data: memoryview, element: Element | None, default: int = 0) -> int:
    if element is None or element.end is None:
        return default
    if element.end - element.start > 8:
        raise Damaged
    return number(data, element.start, element.end - element.start)


def _real(data: memoryview, element: Element | None) -> float:
    if element is None or element.end is None or element.start == element.end:
        return 0.0
    code = {4: ">f", 8: ">d"}.get(element.end - element.start)
    value: float = struct.unpack_from(code, data, element.start)[0] if code is not None else math.nan
    if not math.isfinite(value) or value < 0:
        raise Damaged
    return value


def _text(data: memoryview, element: Element | None) -> str:
    if element is None:
        return ""
    content = bytes(data[element.start : element.end]).rstrip(b"\0").decode("ascii", "replace")
    return "".join(letter if letter.isprintable() else "?" for letter in content[:32])
