"""MP4 and MOV headers, judged by what PyAV decodes."""

from __future__ import annotations

import struct
from fractions import Fraction

import pytest

from proteus.errors import InvalidMedia
from proteus.media.damage import Damaged
from proteus.media.iso_media import MAX_BOXES, probe_mp4
from tests.media.corpus_av import Video, cut_mp4, judge, patched, same_video, sound_bytes, video_bytes

RECIPES = (
    Video(container="mp4", codec="libx264"),
    Video(container="mp4", codec="libx264", num_frames=1),
    Video(container="mp4", codec="libx264", num_frames=31, frames_per_s=Fraction(30_000, 1001)),
    Video(container="mp4", codec="libx264", sound_codec="aac"),
    Video(container="mp4", codec="libx264", num_frames=40, muxer=(("use_editlist", "0"),)),
    Video(container="mp4", codec="libx264", num_frames=40, muxer=(("movflags", "negative_cts_offsets"),)),
    Video(container="mp4", codec="mpeg4", width_px=50, height_px=34),
    Video(container="mov", codec="mjpeg", pix_fmt="yuvj420p"),
    Video(container="mov", codec="prores", pix_fmt="yuv422p10le", num_frames=3),
)
PLAIN = Video(container="mp4", codec="mpeg4")
FRAGMENTED = (
    "frag_keyframe",
    "frag_keyframe+empty_moov",
    "frag_keyframe+empty_moov+default_base_moof",
    "frag_keyframe+empty_moov+delay_moov",
    "frag_every_frame+empty_moov",
    "frag_keyframe+empty_moov+omit_tfhd_offset",
)
SWAPPED, UPRIGHT, UPSIDE_DOWN, MIRRORED_TURN = ((0, 1, -1, 0), (1, 0, 0, 1), (-1, 0, 0, -1), (0, 1, 1, 0))


def box(kind: bytes, *content: bytes) -> bytes:
    inside = b"".join(content)
    return struct.pack(">I4s", 8 + len(inside), kind) + inside


def edited(data: bytes, duration: int, start: int) -> bytes:
    """The file with its one edit replaced; movie ticks (ms) and track ticks."""
    return patched(data, data.index(b"elst") + 12, struct.pack(">Ii", duration, start))


def turned(data: bytes, head: bytes, offset: int, matrix: tuple[int, int, int, int]) -> bytes:
    """The file with the matrix of its first `head` (version 0) replaced."""
    a, b, c, d = (side << 16 for side in matrix)
    return patched(data, data.index(head) + 4 + offset, struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30))


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_frames_size_and_duration_are_those_decoded(recipe: Video) -> None:
    data = video_bytes(recipe)
    header = probe_mp4(memoryview(data))
    assert same_video(header, data)
    assert header.num_frames == recipe.num_frames
    assert header.duration_s == pytest.approx(recipe.num_frames / recipe.frames_per_s)
    assert header.duration_s == pytest.approx(judge(data, "video").duration_s)
    assert header.format == recipe.container


@pytest.mark.parametrize("flags", FRAGMENTED)
def test_frames_of_fragments_are_counted(flags: str) -> None:
    data = video_bytes(
        Video(container="mp4", codec="libx264", num_frames=40, encoder=(("g", "10"),), muxer=(("movflags", flags),))
    )
    header = probe_mp4(memoryview(data))
    assert same_video(header, data)
    assert (header.num_frames, header.duration_s) == (40, pytest.approx(1.6))


def test_case_52_of_93_samples_the_12_visible_ones_count() -> None:
    whole = video_bytes(Video(container="mp4", codec="libx264", num_frames=120, encoder=(("g", "120"),)))
    data = cut_mp4(whole, first=81, end=93)
    header = probe_mp4(memoryview(data))
    assert same_video(header, data)
    assert (header.num_frames, header.duration_s) == (12, pytest.approx(0.48))


@pytest.mark.parametrize("codec", ["libx264", "mpeg4"], ids=["reordered frames", "frames in order"])
@pytest.mark.parametrize(
    ("duration_ms", "start"),
    [
        (0, 1024), (100, 1024), (101, 1024), (100, 1023), (100, 1025), (333, 5120), (40, 0), (1, 0), (1600, -1),
        (5000, 3000), (1, 700_000), (400, 7780), (2**32 - 1, 2**31 - 1),
    ],
)  # fmt: skip
def test_an_edit_shows_what_a_decoder_shows(codec: str, duration_ms: int, start: int) -> None:
    whole = video_bytes(Video(container="mp4", codec=codec, num_frames=40, encoder=(("g", "10"),)))
    data = edited(whole, duration_ms, start)
    assert probe_mp4(memoryview(data)).num_frames == judge(data, "video").num_frames


def test_an_edit_of_no_duration_shows_all_fragments_that_come() -> None:
    muxer = (("movflags", "frag_keyframe"), ("use_editlist", "1"))
    data = video_bytes(Video(container="mp4", codec="mpeg4", num_frames=40, encoder=(("g", "10"),), muxer=muxer))
    assert data[data.index(b"elst") + 12 :][:4] == bytes(4)
    assert probe_mp4(memoryview(data)).num_frames == 40


@pytest.mark.parametrize(
    ("track", "movie", "size_px"),
    [
        (UPRIGHT, UPRIGHT, (48, 32)),
        (SWAPPED, UPRIGHT, (32, 48)),
        (UPSIDE_DOWN, UPRIGHT, (48, 32)),
        (MIRRORED_TURN, UPRIGHT, (32, 48)),
        (UPRIGHT, SWAPPED, (32, 48)),
        (SWAPPED, SWAPPED, (48, 32)),
    ],
)
def test_a_quarter_turn_swaps_the_sides(
    track: tuple[int, int, int, int], movie: tuple[int, int, int, int], size_px: tuple[int, int]
) -> None:
    data = video_bytes(PLAIN)
    header = probe_mp4(memoryview(turned(turned(data, b"tkhd", 40, track), b"mvhd", 36, movie)))
    assert (header.width_px, header.height_px) == size_px


def test_the_track_tells_the_size_where_the_sample_description_does_not() -> None:
    data = video_bytes(PLAIN)
    header = probe_mp4(memoryview(patched(data, data.index(b"mp4v") + 28, bytes(4))))
    assert (header.width_px, header.height_px) == (48, 32)


def test_the_brand_tells_mov_from_mp4_and_a_file_without_brands_is_mov() -> None:
    data = video_bytes(PLAIN)
    head_bytes = int.from_bytes(data[:4], "big")
    assert probe_mp4(memoryview(data)).format == "mp4"
    assert probe_mp4(memoryview(patched(data, 8, b"qt  "))).format == "mov"
    assert probe_mp4(memoryview(data[head_bytes:])).format == "mov"


def test_moov_may_come_first() -> None:
    data = video_bytes(PLAIN)
    head, movie = int.from_bytes(data[:4], "big"), data.index(b"moov") - 4
    assert movie > head
    reordered = data[:head] + data[movie:] + data[head:movie]
    assert probe_mp4(memoryview(reordered)) == probe_mp4(memoryview(data))


def test_no_sample_is_read() -> None:
    data = video_bytes(Video(container="mp4", codec="libx264"))
    start, end = data.index(b"mdat") + 4, data.index(b"moov") - 4
    assert probe_mp4(memoryview(patched(data, start, b"\xa5" * (end - start)))) == probe_mp4(memoryview(data))


def test_case_53_a_video_of_no_frames_is_told_as_such() -> None:
    data = video_bytes(PLAIN)
    for table in (b"stts", b"ctts", b"elst"):
        data = data.replace(table, b"free")
    at = data.index(b"stsz") - 4
    empty = box(b"stts", bytes(8)) + box(b"stsz", bytes(12))
    table_bytes = int.from_bytes(data[at : at + 4], "big")
    data = patched(data, at, empty + box(b"free", bytes(table_bytes - len(empty) - 8)))
    header = probe_mp4(memoryview(data))
    assert (header.num_frames, header.duration_s, header.frames_per_s) == (0, 0.0, 0.0)


@pytest.mark.parametrize("container", ["mp4", "ipod", "mov"])
def test_case_53_sound_alone_is_refused_by_name(container: str) -> None:
    data = sound_bytes(container, "aac", 5000)
    with pytest.raises(InvalidMedia, match=r"an (mp4|mov) file with sound and no picture; fix: send a file with a vid"):
        probe_mp4(memoryview(data))


def test_a_file_without_tracks_is_refused() -> None:
    with pytest.raises(InvalidMedia, match="an mp4 file without a video track"):
        probe_mp4(memoryview(box(b"ftyp", b"isom", bytes(4)) + box(b"moov", box(b"mvhd", bytes(100)))))


def test_case_50_a_track_without_a_clock_has_no_rate() -> None:
    data = video_bytes(PLAIN)
    header = probe_mp4(memoryview(patched(data, data.index(b"mdhd") + 16, bytes(4)).replace(b"elst", b"free")))
    assert (header.num_frames, header.duration_s, header.frames_per_s) == (10, 0.0, 0.0)


def test_case_50_a_rate_below_one_is_kept() -> None:
    data = video_bytes(Video(container="mp4", codec="mpeg4", frames_per_s=Fraction(2, 5)))
    assert probe_mp4(memoryview(data)).frames_per_s == pytest.approx(0.4)


def test_a_claim_of_billions_of_frames_costs_nothing_and_is_refused() -> None:
    data = video_bytes(PLAIN)
    data = patched(data, data.index(b"stsz") + 12, b"\xff" * 4)
    with pytest.raises(InvalidMedia, match="limit: 10,000,000 frames; fix: send a shorter video"):
        probe_mp4(memoryview(data))


@pytest.mark.parametrize("table", [b"stts", b"elst", b"stsd"])
def test_a_table_longer_than_its_box_is_damage(table: bytes) -> None:
    data = video_bytes(PLAIN)
    at = data.index(table) + (8 if table != b"stsd" else -4)
    with pytest.raises(Damaged):
        probe_mp4(memoryview(patched(data, at, b"\x00\x0f\xff\xff")))


def test_more_boxes_than_are_counted_are_refused() -> None:
    data = video_bytes(PLAIN)
    with pytest.raises(InvalidMedia, match=f"limit: {MAX_BOXES:,} boxes"):
        probe_mp4(memoryview(data + box(b"free") * MAX_BOXES))


def test_boxes_inside_boxes_cost_no_depth() -> None:
    nest = b""
    for _ in range(3000):
        nest = box(b"moov", nest)
    with pytest.raises(InvalidMedia, match="without a video track"):
        probe_mp4(memoryview(nest))


@pytest.mark.parametrize("tail", [b"\0" * 20, b"junkjunkjunk"], ids=["zeros", "junk"])
def test_bytes_behind_the_last_box_do_not_matter(tail: bytes) -> None:
    data = video_bytes(PLAIN)
    assert probe_mp4(memoryview(data + tail)) == probe_mp4(memoryview(data))


@pytest.mark.parametrize("kind", [b"moov", b"mdat"])
def test_a_box_that_runs_over_the_file_is_damage(kind: bytes) -> None:
    data = video_bytes(PLAIN)
    with pytest.raises(Damaged):
        probe_mp4(memoryview(patched(data, data.index(kind) - 4, b"\x7f\xff\xff\xff")))
