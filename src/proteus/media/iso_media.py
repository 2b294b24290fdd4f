"""Header of MP4 and QuickTime video (ISO/IEC 14496-12, QuickTime File Format): the boxes of `moov`, and of each `moof`
where the file is written in fragments. Sample data is skipped by its size and never read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from proteus.errors import InvalidMedia
from proteus.media.boxes import iso_head
from proteus.media.damage import Damaged
from proteus.media.fields import letters, number, too_many
from proteus.media.header import VideoHeader
from proteus.media.iso_tables import MAX_SAMPLES, Span, read_edits, read_num_samples, read_run, read_runs
from proteus.media.iso_timeline import Edit, Samples, presented, samples_of

MAX_BOXES = 100_000  # looked at in one file
MUST_BE_WHOLE = frozenset({b"moov", b"moof", b"mdat"})  # at the top; anything else there may be cut: nobody reads it


def probe_mp4(data: memoryview) -> VideoHeader:
    """Header of an MP4 or MOV video, told apart by the brand `qt  ` (a file without brands is a MOV).

    Frames are those shown through the edit list; the size is that of the first picture track, turned as its matrix
    says. Raises Damaged for a broken file, InvalidMedia on a file without pictures and on more boxes or samples than
    are counted.
    """
    head = iso_head(data, 0, len(data))
    name: Literal["mp4", "mov"] = "mov" if head is None or head[0] != b"ftyp" or bytes(data[8:12]) == b"qt  " else "mp4"
    file = IsoFile(data)
    movie, fragments = file.top()
    track = _picture_track(file, movie, name)
    num_frames, ticks = presented(track.samples, track.edits)
    for fragment in fragments:
        more_frames, more_ticks = _fragment(file, fragment, track)
        num_frames, ticks = num_frames + more_frames, ticks + more_ticks
        if num_frames > MAX_SAMPLES:
            raise too_many("video", "frames", MAX_SAMPLES)
    return VideoHeader(
        format=name,
        width_px=track.width_px,
        height_px=track.height_px,
        num_frames=num_frames,
        duration_s=ticks / track.ticks_per_s if track.ticks_per_s else 0.0,
        codec=track.codec,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureTrack:
    track_id: int
    ticks_per_s: int  # 0 where the file does not tell
    samples: Samples
    edits: Sequence[Edit] | None
    fragment_ticks: int  # of a sample in a fragment that tells none itself
    codec: str
    width_px: int
    height_px: int


class IsoFile:
    """One file being read; counts the boxes looked at, because the boxes of a hostile file are without number."""

    def __init__(self, data: memoryview) -> None:
        self.data, self.boxes_left = data, MAX_BOXES

    def boxes(self, span: Span, must_fit: frozenset[bytes] | None = None) -> Iterator[tuple[bytes, Span]]:
        """Boxes of a span; raises Damaged at one that runs over it, if it is one that `must_fit` (None: all)."""
        start, end = span
        while (head := iso_head(self.data, start, end)) is not None:
            self.boxes_left -= 1
            if self.boxes_left < 0:
                raise too_many("video", "boxes", MAX_BOXES)
            kind, content, start = head
            if start > end and (must_fit is None or kind in must_fit):
                raise Damaged
            yield kind, (content, min(start, end))

    def top(self) -> tuple[Span, list[Span]]:
        """`moov` and every `moof`."""
        found = list(self.boxes((0, len(self.data)), MUST_BE_WHOLE))
        movie = next((span for kind, span in found if kind == b"moov"), None)
        if movie is None:
            raise Damaged
        return movie, [span for kind, span in found if kind == b"moof"]

    def children(self, span: Span) -> Mapping[bytes, Span]:
        """Boxes of a span by type, the first of each."""
        found: dict[bytes, Span] = {}
        for kind, child in self.boxes(span):
            found.setdefault(kind, child)
        return found

    def inside(self, span: Span, *path: bytes) -> Span | None:
        """The first box on the path, None where there is none."""
        found: Span | None = span
        for kind in path:
            found = self.children(found).get(kind) if found is not None else None
        return found


def _picture_track(file: IsoFile, movie: Span, name: str) -> PictureTrack:
    has_sound = False
    for kind, track in file.boxes(movie):
        handler = file.inside(track, b"mdia", b"hdlr") if kind == b"trak" else None
        if handler is None:
            continue
        medium = letters(file.data, handler[0] + 8)
        if medium == "vide":
            return _read_track(file, file.children(movie), track)
        has_sound = has_sound or medium == "soun"
    what = f"an {name} file with sound and no picture" if has_sound else f"an {name} file without a video track"
    raise InvalidMedia(what, fix="send a file with a video track")


def _read_track(file: IsoFile, movie: Mapping[bytes, Span], track: Span) -> PictureTrack:
    data = file.data
    boxes = file.children(track)
    media = file.children(_needed(boxes, b"mdia"))
    tables = file.children(_needed(file.children(_needed(media, b"minf")), b"stbl"))
    head, movie_head = _needed(boxes, b"tkhd"), _needed(movie, b"mvhd")
    track_id = _versioned(data, head, 12, 20)
    ticks_per_s = _versioned(data, _needed(media, b"mdhd"), 12, 20)
    width_px, height_px = _stored_size(data, _needed(tables, b"stsd"), head)
    if _is_turned(data, head, 40, 52) != _is_turned(data, movie_head, 36, 48):
        width_px, height_px = height_px, width_px
    return PictureTrack(
        track_id=track_id,
        ticks_per_s=ticks_per_s,
        samples=_read_samples(data, tables),
        edits=_read_edits(file, movie, track, ticks_per_s),
        fragment_ticks=_default_ticks(file, movie, track_id),
        codec=letters(data, _needed(tables, b"stsd")[0] + 12),
        width_px=width_px,
        height_px=height_px,
    )


def _read_samples(data: memoryview, tables: Mapping[bytes, Span]) -> Samples:
    sizes = tables[b"stsz"] if b"stsz" in tables else _needed(tables, b"stz2")
    offsets = read_runs(data, tables[b"ctts"], signed=True) if b"ctts" in tables else None
    durations = read_runs(data, _needed(tables, b"stts"), signed=False)
    return samples_of(durations, offsets, read_num_samples(data, sizes))


def _read_edits(file: IsoFile, movie: Mapping[bytes, Span], track: Span, ticks_per_s: int) -> list[Edit] | None:
    """None where the whole track is shown."""
    table = file.inside(track, b"edts", b"elst")
    movie_ticks_per_s = _versioned(file.data, movie[b"mvhd"], 12, 20)
    if table is None or not movie_ticks_per_s:
        return None
    edits = read_edits(
        file.data,
        table,
        ticks_per_s=ticks_per_s,
        movie_ticks_per_s=movie_ticks_per_s,
        is_fragmented=b"mvex" in movie,
    )
    return edits or None


def _stored_size(data: memoryview, descriptions: Span, track_head: Span) -> tuple[int, int]:
    """(width, height) of the first sample description; where it tells none, of the track (16.16 fixed point)."""
    if number(data, descriptions[0] + 4, 4) == 0:
        raise Damaged
    width_px, height_px = number(data, descriptions[0] + 40, 2), number(data, descriptions[0] + 42, 2)
    if width_px and height_px:
        return width_px, height_px
    sides = 88 if number(data, track_head[0], 1) == 1 else 76
    return number(data, track_head[0] + sides, 4) >> 16, number(data, track_head[0] + sides + 4, 4) >> 16


def _is_turned(data: memoryview, head: Span, short_at: int, long_at: int) -> bool:
    """True where the matrix (a b u, c d v, x y w) at that offset swaps the sides: a quarter turn, mirrored or not."""
    at = head[0] + (long_at if number(data, head[0], 1) == 1 else short_at)
    a, b, c, d = (abs(number(data, at + offset, 4, signed=True)) for offset in (0, 4, 12, 16))
    return b + c > a + d


def _default_ticks(file: IsoFile, movie: Mapping[bytes, Span], track_id: int) -> int:
    """Duration that `trex` gives to the samples of the track's fragments."""
    for kind, span in file.boxes(movie[b"mvex"]) if b"mvex" in movie else ():
        if kind == b"trex" and number(file.data, span[0] + 4, 4) == track_id:
            return number(file.data, span[0] + 12, 4)
    return 0


def _fragment(file: IsoFile, fragment: Span, track: PictureTrack) -> tuple[int, int]:
    """(samples, ticks) of the track in one `moof`; §8.8."""
    num_samples = ticks = 0
    for kind, part in file.boxes(fragment):
        head = file.inside(part, b"tfhd") if kind == b"traf" else None
        if head is None or number(file.data, head[0] + 4, 4) != track.track_id:
            continue
        default_ticks = _fragment_ticks(file.data, head, track.fragment_ticks)
        for inner, span in file.boxes(part):
            if inner == b"trun":
                more_samples, more_ticks = read_run(file.data, span, default_ticks)
                num_samples, ticks = num_samples + more_samples, ticks + more_ticks
    return num_samples, ticks


def _fragment_ticks(data: memoryview, head: Span, default: int) -> int:
    flags = number(data, head[0] + 1, 3)
    if not flags & 0x8:
        return default
    return number(data, head[0] + 8 + 8 * bool(flags & 0x1) + 4 * bool(flags & 0x2), 4)


def _needed(boxes: Mapping[bytes, Span], kind: bytes) -> Span:
    if kind not in boxes:
        raise Damaged
    return boxes[kind]


def _versioned(data: memoryview, head: Span, short_at: int, long_at: int) -> int:
    """The 32-bit field at `short_at` of a head of version 0, at `long_at` of one of version 1 (64-bit times)."""
    return number(data, head[0] + (long_at if number(data, head[0], 1) == 1 else short_at), 4)
