from __future__ import annotations

import struct

import pytest
from PIL import Image

from proteus.errors import InvalidPicture
from proteus.media.damage import Damaged
from proteus.media.header import PictureHeader
from proteus.media.heif import MAX_ITEMS, probe_avif, probe_heic
from tests.media.corpus_pictures import picture, saved, seen, turned

HEVC = bytes(16) + b"\xfd"  # chroma 4:2:0
ALPHA = b"\0\0\0\0urn:mpeg:hevc:2015:auxid:1\0"
DEPTH = b"\0\0\0\0urn:mpeg:hevc:2015:auxid:2\0"


def box(kind: bytes, *bodies: bytes) -> bytes:
    body = b"".join(bodies)
    return struct.pack(">I4s", 8 + len(body), kind) + body


def full(kind: bytes, *bodies: bytes, version: int = 0, flags: int = 0) -> bytes:
    return box(kind, bytes((version, 0, 0, flags)), *bodies)


def ispe(width_px: int = 67, height_px: int = 35) -> bytes:
    return full(b"ispe", struct.pack(">II", width_px, height_px))


def clap(*numbers: int) -> bytes:
    return box(b"clap", struct.pack(">IIIIiIiI", *numbers))


def item(number: int, kind: bytes = b"hvc1", *, hidden: bool = False) -> bytes:
    return full(b"infe", struct.pack(">HH4s", number, 0, kind), version=2, flags=hidden)


def ipma(associations: dict[int, tuple[int, ...]]) -> bytes:
    rows = [struct.pack(f">HB{len(at)}B", number, len(at), *at) for number, at in associations.items()]
    return full(b"ipma", struct.pack(">I", len(rows)), *rows)


def heic(
    properties: tuple[bytes, ...] = (ispe(),),
    associations: dict[int, tuple[int, ...]] | None = None,
    *,
    items: tuple[bytes, ...] = (item(1),),
    references: tuple[bytes, ...] = (),
) -> memoryview:
    places = associations or {1: tuple(range(1, len(properties) + 1))}
    parts = [
        full(b"pitm", struct.pack(">H", 1)),
        full(b"iinf", struct.pack(">H", len(items)), *items),
        box(b"iprp", box(b"ipco", *properties), ipma(places)),
        *([full(b"iref", *references)] if references else []),
    ]
    return memoryview(box(b"ftyp", b"heic\0\0\0\0mif1heic") + full(b"meta", *parts) + box(b"mdat", b"garbage"))


def refers(kind: bytes, source: int, *targets: int) -> bytes:
    return box(kind, struct.pack(f">HH{len(targets)}H", source, len(targets), *targets))


def test_size_is_that_of_the_primary_item() -> None:
    header = probe_heic(heic((ispe(8, 8), ispe()), {2: (1,), 1: (2 | 0x80,)}, items=(item(2, hidden=True), item(1))))
    assert header == PictureHeader(format="heic", width_px=67, height_px=35)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("name", ["HEIF", "AVIF"])
def test_turn_and_mirror_are_told_as_exif_tells_them(name: str, orientation: int) -> None:
    image = picture("RGB", (66, 36))
    image.info["exif"] = turned(orientation)
    data = saved(image, name, exif=turned(orientation))
    header = probe_heic(memoryview(data)) if name == "HEIF" else probe_avif(memoryview(data))
    assert header.orientation == orientation
    assert header.upright_px == seen(data).upright_px


def test_exif_inside_the_file_turns_nothing() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = saved(picture("RGB", (66, 36)), "HEIF", exif=exif)
    assert exif.tobytes()[6:] in data
    assert b"irot" not in data
    assert probe_heic(memoryview(data)).upright_px == seen(data).upright_px == (66, 36)


def test_part_that_is_shown_is_the_size_in_heic_and_not_in_avif() -> None:
    data = heic((ispe(68, 64), clap(67, 1, 35, 1, -1, 2, -29, 2)))
    assert probe_heic(data).upright_px == (67, 35)
    assert probe_avif(data).upright_px == (68, 64)


@pytest.mark.parametrize(("width_px", "height_px"), [(16_000, 16_000), (16_000, 8), (8, 16_000)])
def test_picture_that_hides_most_of_what_is_decoded_is_refused(width_px: int, height_px: int) -> None:
    with pytest.raises(InvalidPicture, match=f"8x8 px of the {width_px}x{height_px} px"):
        probe_heic(heic((ispe(width_px, height_px), clap(8, 1, 8, 1, 0, 1, 0, 1))))


@pytest.mark.parametrize(
    "numbers",
    [
        (67, 0, 35, 1, 0, 1, 0, 1),
        (67, 1, 35, 1, 0, 1, 0, 0),
        (0, 1, 35, 1, 0, 1, 0, 1),
        (69, 1, 35, 1, 0, 1, 0, 1),
        (67, 1, 35, 1, 40, 1, 0, 1),
        (67, 1, 35, 1, 0, 1, -40, 1),
    ],
)
def test_part_outside_the_picture_is_damage(numbers: tuple[int, ...]) -> None:
    with pytest.raises(Damaged):
        probe_heic(heic((ispe(68, 64), clap(*numbers))))


@pytest.mark.parametrize(
    ("property_", "mode"),
    [
        (box(b"hvcC", HEVC), "RGB"),
        (box(b"hvcC", bytes(17)), "L"),
        (box(b"av1C", b"\x81\0\x0c\0"), "RGB"),
        (box(b"av1C", b"\x81\0\x1c\0"), "L"),
        (full(b"pixi", b"\1\x08"), "L"),
        (full(b"pixi", b"\3\x08\x08\x08"), "RGB"),
    ],
)
def test_grey_is_told_by_the_codec_or_the_channels(property_: bytes, mode: str) -> None:
    assert probe_heic(heic((ispe(), property_))).mode == mode


@pytest.mark.parametrize(
    ("kind", "auxiliary", "target", "mode"),
    [
        (b"auxl", ALPHA, 1, "RGBA"),
        (b"auxl", DEPTH, 1, "RGB"),
        (b"auxl", ALPHA, 9, "RGB"),
        (b"cdsc", ALPHA, 1, "RGB"),
        (b"thmb", ALPHA, 1, "RGB"),
    ],
)
def test_auxiliary_picture_is_transparency_only_if_it_says_so(
    kind: bytes, auxiliary: bytes, target: int, mode: str
) -> None:
    data = heic((ispe(), box(b"auxC", auxiliary)), {1: (1,), 2: (1, 2)}, references=(refers(kind, 2, target),))
    assert probe_heic(data).mode == mode


def test_pictures_of_their_own_are_counted() -> None:
    items = (item(1), item(2), item(3, hidden=True), item(4, b"Exif"), item(5), item(6, b"grid"))
    assert probe_heic(heic(items=items, references=(refers(b"thmb", 5, 1),))).num_frames == 3
    assert probe_heic(heic(items=())).num_frames == 1


def test_wide_numbers_of_large_files_are_read() -> None:
    meta = full(
        b"meta",
        full(b"pitm", struct.pack(">I", 70_000), version=1),
        full(
            b"iinf",
            struct.pack(">I", 2),
            full(b"infe", struct.pack(">IH4s", 70_000, 0, b"hvc1"), version=3),
            full(b"infe", struct.pack(">IH4s", 70_001, 0, b"hvc1"), version=3),
            version=1,
        ),
        box(
            b"iprp",
            box(b"ipco", ispe(), box(b"auxC", ALPHA)),
            full(
                b"ipma",
                struct.pack(">IIBHIBHH", 2, 70_000, 1, 0x8001, 70_001, 2, 1, 2),
                version=1,
                flags=1,
            ),
        ),
        full(b"iref", box(b"auxl", struct.pack(">IHI", 70_001, 1, 70_000)), version=1),
    )
    header = probe_heic(memoryview(box(b"ftyp", b"heic\0\0\0\0") + meta))
    assert (header.upright_px, header.mode, header.num_frames) == ((67, 35), "RGBA", 1)


def track(handler: bytes = b"pict", samples: int = 7, side_px: int = 35) -> bytes:
    entry = box(b"av01", bytes(78), box(b"av1C", b"\x81\0\x0c\0"))
    table = box(
        b"stbl",
        full(b"stsd", struct.pack(">I", 1), entry),
        full(b"stsz", struct.pack(">II", 0, samples)),
    )
    head = full(b"tkhd", bytes(72), struct.pack(">II", 67 << 16, side_px << 16))
    return box(b"trak", head, box(b"mdia", full(b"hdlr", bytes(4), handler, bytes(13)), box(b"minf", table)))


def sequence(*tracks: bytes, brand: bytes = b"avis") -> memoryview:
    return memoryview(box(b"ftyp", brand, b"\0\0\0\0") + box(b"moov", *tracks))


def test_sequence_is_read_from_its_track() -> None:
    header = probe_avif(sequence(track()))
    assert header == PictureHeader(format="avif", width_px=67, height_px=35, num_frames=7)
    assert probe_avif(sequence(track(b"soun"), track(b"vide"), track(b"auxv"))).mode == "RGBA"
    assert probe_heic(sequence(track(), brand=b"hevc")).num_frames == 7


@pytest.mark.parametrize("tracks", [(), (track(b"soun"),), (track(samples=0),), (track(side_px=0),)])
def test_sequence_without_pictures_is_damage(tracks: tuple[bytes, ...]) -> None:
    with pytest.raises(Damaged):
        probe_avif(sequence(*tracks))


@pytest.mark.parametrize(
    "data",
    [
        box(b"ftyp", b"heic\0\0\0\0"),
        heic((ispe(0, 5),)),
        heic((ispe(5, 0),)),
        heic((box(b"free"),)),
        heic((ispe(),), {9: (1,)}),
        heic((ispe(),), {1: (0, 2)}),
        bytes(heic())[:100],
        bytes(heic()).replace(b"iprp", b"free"),
        bytes(heic()).replace(b"pitm", b"free"),
        bytes(heic()).replace(b"iinf", b"free"),
    ],
)
def test_broken_file_is_damage(data: bytes) -> None:
    with pytest.raises((Damaged, struct.error, IndexError)):
        probe_heic(memoryview(data))


def test_too_many_items_are_refused() -> None:
    meta = bytes(heic()).replace(b"ipma\0\0\0\0\0\0\0\1", b"ipma\0\0\0\0" + struct.pack(">I", MAX_ITEMS + 1))
    with pytest.raises(InvalidPicture, match="4,097 items"):
        probe_heic(memoryview(meta))
