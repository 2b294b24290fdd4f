"""HEIC and AVIF: size, turn, mode and frames from the boxes of ISO/IEC 23008-12; the codec's data are never touched.

A still picture is the primary item with its properties; a sequence is the track of a film, as in MP4.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from proteus.errors import InvalidPicture
from proteus.media.boxes import iso_boxes
from proteus.media.damage import Damaged
from proteus.media.header import PictureFormat, PictureHeader

MAX_ITEMS = 4096
MAX_TARGETS = 64  # of one reference
# (quarter turns anticlockwise, mirrored axis or None) -> EXIF orientation. ISO/IEC 23008-12 §6.5.10 and §6.5.12: the
# turn comes first; axis 0 exchanges top and bottom, axis 1 left and right.
ORIENTATIONS: Mapping[tuple[int, int | None], int] = {
    (0, None): 1,
    (1, None): 8,
    (2, None): 3,
    (3, None): 6,
    (0, 0): 4,
    (0, 1): 2,
    (1, 0): 5,
    (1, 1): 7,
    (2, 0): 2,
    (2, 1): 4,
    (3, 0): 7,
    (3, 1): 5,
}
ALPHA_TYPES = (b"urn:mpeg:mpegB:cicp:systems:auxiliary:alpha\0", b"urn:mpeg:hevc:2015:auxid:1\0")
PICTURE_ITEMS = frozenset({b"hvc1", b"av01", b"avc1", b"vvc1", b"jpeg", b"j2k1", b"unci", b"grid", b"iovl", b"iden"})
THUMBNAIL, AUXILIARY = b"thmb", b"auxl"  # kinds of references
PICTURE_TRACKS = (b"pict", b"vide")
SAMPLE_ENTRY_BYTES = 86  # of a visual sample entry, its own head included, before its boxes

Properties = Mapping[bytes, memoryview]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reference:
    kind: bytes
    source: int
    targets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Box:
    """The content of a box, or what an absent one leaves: nothing."""

    data: memoryview

    def boxes(self, skip: int = 0) -> Iterator[tuple[bytes, _Box]]:
        for kind, start, end in iso_boxes(self.data, skip, len(self.data)):
            yield kind, _Box(self.data[start:end])

    def first(self, *path: bytes, skip: int = 0) -> _Box:
        """The box at the end of `path`, each the first of its kind; `skip` bytes stand before the first boxes."""
        if not path:
            return self
        found = next((box for kind, box in self.boxes(skip) if kind == path[0]), None)
        if found is None:
            raise Damaged
        return found.first(*path[1:])

    @property
    def version(self) -> int:
        return self.data[0]


def probe_heic(data: memoryview) -> PictureHeader:
    """Raises Damaged, struct.error or IndexError for broken files, InvalidPicture over MAX_ITEMS items.

    The size is that of the clean aperture, which is how HEVC tells sides that are odd.
    """
    return _probe(data, "heic")


def probe_avif(data: memoryview) -> PictureHeader:
    """As `probe_heic`; AV1 tells odd sides itself, and readers ignore a clean aperture."""
    return _probe(data, "avif")


def _probe(data: memoryview, name: PictureFormat) -> PictureHeader:
    file = _Box(data)
    kinds = {kind for kind, _ in file.boxes()}
    if b"moov" in kinds and (bytes(data[8:12]) == b"avis" or b"meta" not in kinds):
        return _probe_sequence(file.first(b"moov"), name)
    return _probe_still(file.first(b"meta"), name)


def _probe_still(meta: _Box, name: PictureFormat) -> PictureHeader:
    primary = _number(meta.first(b"pitm", skip=4), 4)
    items = _Items(meta.first(b"iprp", skip=4))
    properties = items.properties(primary)
    references = list(_references(meta))
    has_alpha = any(
        reference.kind == AUXILIARY
        and primary in reference.targets
        and bytes(items.properties(reference.source).get(b"auxC", b"")[4:]).startswith(ALPHA_TYPES)
        for reference in references
    )
    width_px, height_px = struct.unpack_from(">4xII", properties.get(b"ispe", b""))
    if name == "heic" and b"clap" in properties:
        width_px, height_px = _clean_aperture(properties[b"clap"], width_px, height_px)
    if not width_px or not height_px:
        raise Damaged
    return PictureHeader(
        format=name,
        width_px=width_px,
        height_px=height_px,
        orientation=_orientation(properties),
        mode=_mode(_is_grey(properties), has_alpha),
        num_frames=_count_pictures(meta, references) if name == "heic" else 1,
    )


def _probe_sequence(moov: _Box, name: PictureFormat) -> PictureHeader:
    """The first track of pictures; one of auxiliary pictures beside it is its transparency."""
    tracks = {_handler(box): box for kind, box in moov.boxes() if kind == b"trak"}
    track = next((tracks[kind] for kind in PICTURE_TRACKS if kind in tracks), None)
    if track is None:
        raise Damaged
    head, table = track.first(b"tkhd"), track.first(b"mdia", b"minf", b"stbl")
    width_px, height_px = struct.unpack_from(">HxxHxx", head.data, len(head.data) - 8)
    (num_frames,) = struct.unpack_from(">8xI", table.first(b"stsz").data)
    properties = {kind: box.data for kind, box in table.first(b"stsd").boxes(8 + SAMPLE_ENTRY_BYTES)}
    if not width_px or not height_px or not num_frames:
        raise Damaged
    return PictureHeader(
        format=name,
        width_px=width_px,
        height_px=height_px,
        orientation=_orientation(properties),
        mode=_mode(_is_grey(properties), b"auxv" in tracks),
        num_frames=num_frames,
    )


def _handler(track: _Box) -> bytes:
    return bytes(track.first(b"mdia", b"hdlr").data[8:12])


class _Items:
    """The properties of every item; of an item that shares nothing, none."""

    def __init__(self, iprp: _Box) -> None:
        self.all = [(kind, box.data) for kind, box in iprp.first(b"ipco").boxes()]
        self.places: dict[int, tuple[int, ...]] = {}
        for kind, box in iprp.boxes():
            if kind == b"ipma":
                self.places.update(_associations(box))

    def properties(self, item: int) -> Properties:
        """By kind; places count from 1, and 0 is none."""
        chosen = [self.all[place - 1] for place in self.places.get(item, ()) if 0 < place <= len(self.all)]
        return dict(reversed(chosen))


def _associations(ipma: _Box) -> Iterator[tuple[int, tuple[int, ...]]]:
    """(item, places of its properties), ISO/IEC 23008-12 §9.3.3; the highest bit of a place says "essential"."""
    body, at = ipma.data, 8
    (count,) = struct.unpack_from(">4xI", body)
    _check_count(count)
    id_code, id_bytes = (">I", 4) if ipma.version else (">H", 2)
    place_code, place_bytes, mask = ("H", 2, 0x7FFF) if body[3] & 1 else ("B", 1, 0x7F)
    for _ in range(count):
        (item,) = struct.unpack_from(id_code, body, at)
        number = body[at + id_bytes]
        at += id_bytes + 1
        yield item, tuple(place & mask for place in struct.unpack_from(f">{number}{place_code}", body, at))
        at += number * place_bytes


def _references(meta: _Box) -> Iterator[_Reference]:
    """Thumbnails and auxiliary pictures, with the first items that each is for."""
    iref = next((box for kind, box in meta.boxes(4) if kind == b"iref"), None)
    if iref is None:
        return
    code, width = ("I", 4) if iref.version else ("H", 2)
    for kind, box in iref.boxes(4):
        if kind in (THUMBNAIL, AUXILIARY):
            source, count = struct.unpack_from(f">{code}H", box.data)
            targets = struct.unpack_from(f">{min(count, MAX_TARGETS)}{code}", box.data, width + 2)
            yield _Reference(kind=kind, source=source, targets=targets)


def _count_pictures(meta: _Box, references: list[_Reference]) -> int:
    """Items that are pictures in their own right: not hidden, no thumbnail and no auxiliary picture."""
    iinf = meta.first(b"iinf", skip=4)
    count, skip = _number(iinf, 4), 8 if iinf.version else 6
    _check_count(count)
    parts = {reference.source for reference in references}
    shown = 0
    for kind, entry in iinf.boxes(skip):
        if kind == b"infe" and entry.version >= 2:
            item, type_ = struct.unpack_from(">4xI2x4s" if entry.version == 3 else ">4xH2x4s", entry.data)
            shown += type_ in PICTURE_ITEMS and not entry.data[3] & 1 and item not in parts
    return max(shown, 1)


def _check_count(count: int) -> None:
    if count > MAX_ITEMS:
        raise InvalidPicture(
            f"the file has {count:,} items", limit=f"{MAX_ITEMS:,} items", fix="save it as one picture"
        )


def _number(box: _Box, at: int) -> int:
    """16 bits wide in version 0 of a box, 32 in later ones."""
    number: int = struct.unpack_from(">I" if box.version else ">H", box.data, at)[0]
    return number


def _clean_aperture(clap: memoryview, width_px: int, height_px: int) -> tuple[int, int]:
    """ISO/IEC 14496-12 §12.1.4: sides as fractions. One that is no part of the picture is ignored."""
    width, width_parts, height, height_parts = struct.unpack_from(">IIII", clap)
    if not width_parts or not height_parts:
        return width_px, height_px
    inner = (width // width_parts, height // height_parts)
    return inner if 0 < inner[0] <= width_px and 0 < inner[1] <= height_px else (width_px, height_px)


def _orientation(properties: Properties) -> int:
    turns = properties[b"irot"][0] & 3 if b"irot" in properties else 0
    axis = properties[b"imir"][0] & 1 if b"imir" in properties else None
    return ORIENTATIONS[turns, axis]


def _is_grey(properties: Properties) -> bool:
    """By the codec's configuration, or by the number of channels where it is a grid that has none."""
    if b"av1C" in properties:
        return bool(properties[b"av1C"][2] & 0x10)
    if b"hvcC" in properties:
        return properties[b"hvcC"][16] & 3 == 0
    return b"pixi" in properties and properties[b"pixi"][4] == 1


def _mode(is_grey: bool, has_alpha: bool) -> str:
    return ("L" if is_grey else "RGB") + ("A" if has_alpha else "")
