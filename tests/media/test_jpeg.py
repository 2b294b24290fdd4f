from __future__ import annotations

import struct

import pytest

from proteus.errors import InvalidPicture
from proteus.media.damage import Damaged
from proteus.media.jpeg import MAX_PADDING, MAX_SEGMENTS, probe_jpeg
from tests.media.corpus_pictures import picture, saved, turned, xmp

SCAN = b"\xff\xda\0\x02"


def segment(marker: int, body: bytes = b"") -> bytes:
    return bytes((0xFF, marker)) + struct.pack(">H", len(body) + 2) + body


def frame(width_px: int = 67, height_px: int = 35, *, marker: int = 0xC0, bits: int = 8, components: int = 3) -> bytes:
    return segment(marker, struct.pack(">BHHB", bits, height_px, width_px, components) + bytes(3 * components))


def jpeg(*segments: bytes) -> memoryview:
    return memoryview(b"\xff\xd8" + b"".join(segments) + SCAN)


@pytest.mark.parametrize("marker", [0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF])
def test_every_kind_of_frame_tells_the_size(marker: int) -> None:
    header = probe_jpeg(jpeg(frame(marker=marker)))
    assert (header.width_px, header.height_px, header.mode, header.num_frames) == (67, 35, "RGB", 1)


@pytest.mark.parametrize("marker", [0xC4, 0xCC, 0xDB, 0xDD, 0xDC, 0xE0, 0xEF, 0xFE])
def test_tables_and_metadata_are_no_frames(marker: int) -> None:
    assert probe_jpeg(jpeg(segment(marker, b"\x08\0\1\0\1\3"), frame())).width_px == 67


@pytest.mark.parametrize(("components", "mode"), [(1, "L"), (3, "RGB"), (4, "CMYK")])
def test_mode_follows_the_number_of_components(components: int, mode: str) -> None:
    assert probe_jpeg(jpeg(frame(components=components))).mode == mode


def test_thumbnail_inside_a_segment_is_not_the_picture() -> None:
    thumbnail = saved(picture("RGB", (16, 8)), "JPEG")
    header = probe_jpeg(jpeg(segment(0xE1, turned(6) + thumbnail), segment(0xE2, b"MPF\0" + thumbnail), frame()))
    assert (header.width_px, header.height_px, header.orientation) == (67, 35, 6)


def test_turn_is_found_behind_the_frame_and_across_segments() -> None:
    exif = turned(8)
    assert probe_jpeg(jpeg(frame(), segment(0xE1, exif))).orientation == 8
    assert probe_jpeg(jpeg(segment(0xE1, exif[:20]), segment(0xE1, exif[:6] + exif[20:]), frame())).orientation == 8
    assert (
        probe_jpeg(jpeg(segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0" + xmp(7).encode()), frame())).orientation == 7
    )
    assert probe_jpeg(jpeg(segment(0xE2, exif), frame())).orientation == 1


@pytest.mark.parametrize("between", [b"\xff" * 9, b"junk", b"\xff\xd0", b"\xff\0", b"\0\xff\xff\x01", b"\xff\xd8"])
def test_padding_and_markers_without_a_length_are_skipped(between: bytes) -> None:
    assert probe_jpeg(jpeg(segment(0xE0, b"JFIF"), between, frame(), between)).width_px == 67


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xd8\xff",
        b"\xff\xd8\xff\xe0\0",
        b"\xff\xd8" + SCAN,
        bytes(jpeg(frame()))[:-4],
        bytes(jpeg(segment(0xE0, b"x" * 99)))[:50],
        bytes(jpeg(b"\xff\xe0\0\1", frame())),
        bytes(jpeg(frame(0, 5))),
        bytes(jpeg(frame(5, 0))),  # told behind the scan (DNL)
        bytes(jpeg(frame(8, 8), frame(9_000, 9_000))),
        bytes(jpeg(frame(8, 8), b"\xff\xd9", frame(9_000, 9_000))),  # a file behind the file
        bytes(jpeg(segment(0xDE, b"\x08\0\1\0\1\3"), frame())),  # hierarchical
        bytes(jpeg(segment(0xC8), frame())),
        bytes(jpeg(segment(0xF0), frame())),
        bytes(jpeg(segment(0xC0, b"\x08"))),
        b"\xff\xd8" + b"x" * (MAX_PADDING + 9) + frame() + SCAN,
    ],
)
def test_broken_head_is_damage(data: bytes) -> None:
    with pytest.raises((Damaged, struct.error)):
        probe_jpeg(memoryview(data))


@pytest.mark.parametrize(("bits", "components"), [(12, 3), (8, 2), (8, 5), (16, 1)])
def test_kind_that_nobody_decodes_is_named(bits: int, components: int) -> None:
    with pytest.raises(InvalidPicture, match=f"{components} components with {bits} bits"):
        probe_jpeg(jpeg(frame(bits=bits, components=components)))


def test_too_many_segments_are_refused() -> None:
    assert probe_jpeg(jpeg(frame(), segment(0xE3) * (MAX_SEGMENTS - 2))).width_px == 67
    with pytest.raises(InvalidPicture, match="more than 1,024 segments"):
        probe_jpeg(jpeg(frame(), segment(0xE3) * MAX_SEGMENTS))
