from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proteus.errors import InvalidPicture, MediaTooLarge
from proteus.media.damage import Damaged
from proteus.media.gif import MAX_FRAMES, probe_gif
from tests.media.corpus_pictures import picture, saved, seen

GREYS = bytes(value for grey in (0, 1) for value in (grey, grey, grey))
COLOURS = bytes(range(6))


def screen(width_px: int = 67, height_px: int = 35, palette: bytes = COLOURS) -> bytes:
    return b"GIF89a" + struct.pack("<HHBBB", width_px, height_px, 0x80 if palette else 0, 0, 0) + palette


def frame(*, sizes: tuple[int, ...] = (3,), box: tuple[int, ...] = (0, 0, 67, 35), palette: bytes = b"") -> bytes:
    blocks = b"".join(bytes((size,)) + b"," * size for size in sizes)
    return b"," + struct.pack("<HHHHB", *box, 0x80 if palette else 0) + palette + b"\x02" + blocks + b"\0"


CONTROL = b"!\xf9\4\0\0\0\0\0"
COMMENT = b"!\xfe\5hello\3you\0"


def gif(*parts: bytes) -> memoryview:
    return memoryview(b"".join(parts))


@pytest.mark.parametrize(
    ("data", "num_frames"),
    [
        (gif(screen(), frame(), b";"), 1),
        (gif(screen(), frame()), 1),  # without a trailer
        (gif(screen(), CONTROL, frame(), COMMENT, CONTROL, frame(), b";"), 2),
        (gif(screen(), frame(), b";", frame()), 1),
        (gif(screen(), frame(), b"\0\0\7", frame(), b";"), 2),  # bytes of no meaning between blocks
        (gif(screen(), frame(), frame()[:9]), 1),
        (gif(screen(), frame(), frame()[:13]), 2),
        (gif(screen(), frame(sizes=()), frame(sizes=(255,) * 300), frame(sizes=(1, 2) * 50 + (254,) * 20)), 3),
        (gif(screen(), frame(), b"!"), 1),
    ],
)
def test_frames_are_counted_to_the_trailer_or_the_end(data: memoryview, num_frames: int) -> None:
    header = probe_gif(data)
    assert (header.width_px, header.height_px, header.num_frames) == (67, 35, num_frames)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.tuples(st.integers(1, 255), st.integers(1, 90)), max_size=6), min_size=1, max_size=5))
def test_blocks_of_any_sizes_are_skipped_whole(frames: list[list[tuple[int, int]]]) -> None:
    bodies = [frame(sizes=tuple(size for size, times in runs for _ in range(times))) for runs in frames]
    assert probe_gif(gif(screen(), CONTROL.join(bodies), b";")).num_frames == len(frames)


@pytest.mark.parametrize(
    ("glob", "local", "mode"),
    [(COLOURS, b"", "P"), (GREYS, b"", "L"), (b"", b"", "L"), (COLOURS, GREYS, "L"), (GREYS, COLOURS, "P")],
)
def test_palette_of_greys_in_order_is_none(glob: bytes, local: bytes, mode: str) -> None:
    assert probe_gif(gif(screen(palette=glob), frame(palette=local), b";")).mode == mode


def test_screen_grows_to_hold_the_first_frame_as_decoders_do() -> None:
    small = saved(picture("P", (67, 35)), "GIF")
    data = small[:6] + struct.pack("<HH", 5, 5) + small[10:]
    assert probe_gif(memoryview(data)).upright_px == seen(data).upright_px == (67, 35)
    later = gif(screen(10, 10), frame(box=(0, 0, 9, 9)), frame(box=(0, 0, 900, 900)), b";")
    assert probe_gif(later).upright_px == (10, 10)


@pytest.mark.parametrize(
    "data", [b"GIF89a", screen(), screen()[:15], bytes(gif(screen(), b";", frame())), screen() + frame()[:9]]
)
def test_file_without_a_frame_is_damage(data: bytes) -> None:
    with pytest.raises((Damaged, struct.error)):
        probe_gif(memoryview(data))


def test_picture_without_pixels_is_damage() -> None:
    with pytest.raises(Damaged):
        probe_gif(gif(screen(0, 5), frame(box=(0, 0, 0, 5)), b";"))


def test_too_many_frames_are_refused() -> None:
    assert probe_gif(gif(screen(), frame() * MAX_FRAMES)).num_frames == MAX_FRAMES
    with pytest.raises(MediaTooLarge, match="more than 4,096 frames"):
        probe_gif(gif(screen(), frame() * (MAX_FRAMES + 1)))


@pytest.mark.parametrize("unit", [b"\1a\2bb", b"\1a"])
def test_too_many_blocks_are_refused(unit: bytes) -> None:
    with pytest.raises(InvalidPicture, match="too many blocks"):
        probe_gif(gif(screen(), frame()[:-5], unit * 2_000_000))


@pytest.mark.parametrize("unit", [b"!\xf9\0", b"\7"])
def test_too_much_between_frames_is_refused(unit: bytes) -> None:
    with pytest.raises(InvalidPicture, match="too many blocks"):
        probe_gif(gif(screen(), unit * 100_000))
