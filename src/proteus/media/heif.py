"""HEIC and AVIF: size, turn, mode and frames from the boxes of ISO/IEC 23008-12; the codec's data are never touched.

A still picture is the primary item with its properties; a sequence is the track of a film, as in MP4.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from proteus.errors import InvalidPicture
from proteus.limits import PictureFormat
from proteus.media.boxes import iso_boxes
from proteus.media.damage import Damaged
from proteus.media.header import PictureHeader

MAX_ITEMS = 4096
MAX_TARGETS = 64  # of one reference
MAX_CROP_PX = 64  # that a clean aperture may hide of a side: codecs round sides up to their blocks
FULL_HEAD = 4  # version and flags, before the content of a full box
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
    """The content of a box."""

    data: memoryview

    def boxes(self, skip: int = 0) -> Iterator[tuple[bytes, _Box]]:
        """The boxes in it, behind `skip` bytes."""
        for kind, start, end in iso_boxes(self.data, skip, len(self.data)):
            yield kind, _Box(self.data[start:end])

    def children(self, skip: int = 0) -> Children:
        """The first box of each kind."""
        found: dict[bytes, slice] = {}
        for kind, start, end in iso_boxes(self.data, skip, len(self.data)):
            found.setdefault(kind, slice(start, end))
        return {kind: _Box(self.data[place]) for kind, place in found.items()}

    def first(self, *path: bytes) -> _Box:
        """The box at the end of `path`, each the first of its kind."""
        return _needed(self.children(), path[0]).first(*path[1:]) if path else self

    @property
    def version(self) -> int:
        return self.data[0]


Children = Mapping[bytes, _Box]


def probe_heic(data: memoryview) -> PictureHeader:
    """Raises Damaged, struct.error or IndexError for broken files, InvalidPicture over MAX_ITEMS items.

    The size is that of the clean aperture, which is how HEVC tells sides that are odd.
    """
    return _probe(data, "heic")


def probe_avif(data: memoryview) -> PictureHeader:
    """As `probe_heic`; AV1 tells odd sides itself, and readers ignore a clean aperture."""
    return _probe(data, "avif")


def _probe(data: memoryview, name: PictureFormat) -> PictureHeader:
    file = _Box(data).children()
    if b"moov" in file and (bytes(data[8:12]) == b"avis" or b"meta" not in file):
        return _probe_sequence(file[b"moov"], name)
    return _probe_still(_needed(file, b"meta").children(FULL_HEAD), name)


def _probe_still(meta: Children, name: PictureFormat) -> PictureHeader:
    primary = _number(_needed(meta, b"pitm"), FULL_HEAD)
    items = _Items(_needed(meta, b"iprp"))
    properties = items.properties(primary)
    references = list(_references(meta[b"iref"])) if b"iref" in meta else []
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
        num_frames=_count_pictures(_needed(meta, b"iinf"), references) if name == "heic" else 1,
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


def _references(iref: _Box) -> Iterator[_Reference]:
    """Thumbnails and auxiliary pictures, with the first items that each is for."""
    code, width = ("I", 4) if iref.version else ("H", 2)
    for kind, box in iref.boxes(FULL_HEAD):
        if kind in (THUMBNAIL, AUXILIARY):
            source, count = struct.unpack_from(f">{code}H", box.data)
            targets = struct.unpack_from(f">{min(count, MAX_TARGETS)}{code}", box.data, width + 2)
            yield _Reference(kind=kind, source=source, targets=targets)


def _count_pictures(iinf: _Box, references: list[_Reference]) -> int:
    """Items that are pictures in their own right: not hidden, no thumbnail and no auxiliary picture."""
    count, skip = _number(iinf, FULL_HEAD), 8 if iinf.version else 6
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


def _needed(boxes: Children, kind: bytes) -> _Box:
    if kind not in boxes:
        raise Damaged
    return boxes[kind]


def _number(box: _Box, at: int) -> int:
    """16 bits wide in version 0 of a box, 32 in later ones."""
    number: int = struct.unpack_from(">I" if box.version else ">H", box.data, at)[0]
    return number


def _clean_aperture(clap: memoryview, width_px: int, height_px: int) -> tuple[int, int]:
    """The sides of the part that is shown; ISO/IEC 14496-12 §12.1.4.

    A decoder works on the whole, so a file that hides most of it would cost more than its size says: it is refused.
    """
    fractions = struct.unpack_from(">IIIIiIiI", clap)
    shown = _shown_px(width_px, *fractions[:2], *fractions[4:6]), _shown_px(height_px, *fractions[2:4], *fractions[6:])
    if width_px - shown[0] > MAX_CROP_PX or height_px - shown[1] > MAX_CROP_PX:
        raise InvalidPicture(
            f"the file shows {shown[0]}x{shown[1]} px of the {width_px}x{height_px} px it holds",
            limit=f"{MAX_CROP_PX} px of a side may be hidden",
            fix="save only the part to be shown",
        )
    return shown


def _shown_px(side_px: int, length: int, length_parts: int, offset: int, offset_parts: int) -> int:
    """Of one side; `offset` is that of the middle. Raises Damaged for a part that is not within the side."""
    if not length_parts or not offset_parts:
        raise Damaged
    shown_px = length // length_parts
    hidden = (side_px - shown_px) * offset_parts
    if shown_px <= 0 or hidden < 0 or abs(2 * offset) > hidden + offset_parts:
        raise Damaged
    return shown_px


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
