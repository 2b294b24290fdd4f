from __future__ import annotations

import struct

import pytest

from proteus.errors import InvalidPicture, MediaTooLarge
from proteus.media.damage import Damaged
from proteus.media.tiff import MAX_PAGES, probe_tiff
from tests.media.corpus_pictures import xmp


def tiff(order: str = "<", following: int = 0, **tags: int | tuple[int, ...] | bytes) -> memoryview:
    """One page of 67x35 px; tags by name."""
    numbers = {
        "width": 256,
        "height": 257,
        "bits": 258,
        "compression": 259,
        "photometric": 262,
        "orientation": 274,
        "samples": 277,
        "extra": 338,
        "format": 339,
        "xmp": 700,
    }
    values = {"width": 67, "height": 35, "photometric": 2, "samples": 3, **tags}
    after = 8 + 2 + 12 * len(values) + 4
    table, rest = struct.pack(f"{order}H", len(values)), b""
    for name, value in values.items():
        kind, number, packed = _packed(order, value)
        if len(packed) > 4:
            packed, rest = struct.pack(f"{order}I", after + len(rest)), rest + packed
        table += struct.pack(f"{order}HHI", numbers[name], kind, number) + packed.ljust(4, b"\0")
    magic = {"<": b"II*\0", ">": b"MM\0*"}[order]
    return memoryview(magic + struct.pack(f"{order}I", 8) + table + struct.pack(f"{order}I", following) + rest)


def _packed(order: str, value: int | tuple[int, ...] | bytes) -> tuple[int, int, bytes]:
    if isinstance(value, bytes):
        return 1, len(value), value
    shorts = value if isinstance(value, tuple) else (value,)
    return 3, len(shorts), struct.pack(f"{order}{len(shorts)}H", *shorts)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_size_and_turn_come_from_the_first_directory(order: str, orientation: int) -> None:
    header = probe_tiff(tiff(order, orientation=orientation, bits=(8, 8, 8)))
    assert (header.width_px, header.height_px, header.orientation, header.mode) == (67, 35, orientation, "RGB")


@pytest.mark.parametrize(
    ("tags", "mode"),
    [
        ({"photometric": 0, "samples": 1}, "1"),
        ({"photometric": 1, "samples": 1, "bits": 4}, "L"),
        ({"photometric": 1, "samples": 1, "bits": 8}, "L"),
        ({"photometric": 1, "samples": 1, "bits": 12}, "I;16"),
        ({"photometric": 1, "samples": 1, "bits": 16}, "I;16"),
        ({"photometric": 1, "samples": 1, "bits": 16, "format": 2}, "I"),
        ({"photometric": 1, "samples": 1, "bits": 32, "format": 3}, "F"),
        ({"photometric": 1, "samples": 2, "bits": (8, 8), "extra": 0}, "L"),
        ({"photometric": 1, "samples": 2, "bits": (8, 8), "extra": 1}, "La"),
        ({"photometric": 1, "samples": 2, "bits": (8, 8), "extra": 2}, "LA"),
        ({"photometric": 2, "samples": 4, "bits": (8,) * 4}, "RGBA"),
        ({"photometric": 2, "samples": 4, "bits": (8,) * 4, "extra": 0}, "RGB"),
        ({"photometric": 2, "samples": 4, "bits": (8,) * 4, "extra": 1}, "RGBA"),
        ({"photometric": 2, "samples": 5, "bits": (8,) * 5, "extra": (2, 0)}, "RGBA"),
        ({"photometric": 2, "samples": 3, "bits": (16,) * 3}, "RGB"),
        ({"photometric": 3, "samples": 1, "bits": 8}, "P"),
        ({"photometric": 3, "samples": 2, "bits": (8, 8), "extra": 2}, "PA"),
        ({"photometric": 5, "samples": 4, "bits": (8,) * 4}, "CMYK"),
        ({"photometric": 6, "samples": 3, "bits": (8,) * 3}, "YCbCr"),
        ({"photometric": 6, "samples": 3, "bits": (8,) * 3, "compression": 7}, "RGB"),
        ({"photometric": 6, "samples": 1, "bits": 8}, "L"),
        ({"photometric": 2, "bits": (8,) * 3, "compression": 6}, "RGB"),
        ({"photometric": 8, "samples": 3, "bits": (8,) * 3}, "LAB"),
    ],
)
def test_mode_follows_the_samples(tags: dict[str, int | tuple[int, ...]], mode: str) -> None:
    assert probe_tiff(tiff(**tags)).mode == mode


def test_sixteen_bits_have_a_mode_for_each_byte_order() -> None:
    assert probe_tiff(tiff(">", photometric=1, samples=1, bits=16)).mode == "I;16B"


@pytest.mark.parametrize(
    "tags", [{"photometric": 32_803}, {"photometric": 4, "samples": 1}, {"photometric": 1, "samples": 1, "bits": 64}]
)
def test_samples_of_no_known_meaning_are_named(tags: dict[str, int]) -> None:
    with pytest.raises(InvalidPicture, match="bits with photometric interpretation"):
        probe_tiff(tiff(**tags))


def test_xmp_turns_where_no_tag_does() -> None:
    assert probe_tiff(tiff(xmp=xmp(6).encode())).orientation == 6
    assert probe_tiff(tiff(xmp=xmp(6).encode(), orientation=3)).orientation == 3


@pytest.mark.parametrize(
    "data",
    [
        b"II*\0",
        b"II*\0\x08\0\0\0\0\0",
        tiff(width=0),
        tiff(height=0),
        tiff(width=b"six!"[:0]),
        bytes(tiff())[:20],
    ],
)
def test_broken_file_is_damage(data: bytes) -> None:
    with pytest.raises((Damaged, struct.error)):
        probe_tiff(memoryview(data))


def test_turn_whose_value_lies_outside_turns_nothing() -> None:
    data = bytearray(tiff(orientation=6))
    at = data.index(struct.pack("<HHI", 274, 3, 1))
    data[at : at + 12] = struct.pack("<HHII", 274, 3, 9, 0xFFFF_FFF0)
    assert probe_tiff(memoryview(bytes(data))).orientation == 1


def test_pages_are_counted_and_a_loop_ends() -> None:
    first = bytes(tiff(following=8 + 2 + 12 * 4 + 4))
    page = struct.pack("<HI", 0, 0)
    assert probe_tiff(memoryview(first + page)).num_frames == 2
    assert probe_tiff(memoryview(first + struct.pack("<HI", 0, 8))).num_frames == 2
    assert probe_tiff(tiff(following=8)).num_frames == 1
    assert probe_tiff(tiff(following=60_000)).num_frames == 1


def test_too_many_pages_are_refused() -> None:
    start = 8 + 2 + 12 * 4 + 4
    pages = b"".join(struct.pack("<HI", 0, start + 6 * place) for place in range(1, MAX_PAGES + 1))
    with pytest.raises(MediaTooLarge, match="more than 4,096 pages"):
        probe_tiff(memoryview(bytes(tiff(following=start)) + pages + bytes(6)))
