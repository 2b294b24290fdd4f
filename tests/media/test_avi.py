"""AVI headers, judged by what PyAV decodes, and by files put together by hand."""

from __future__ import annotations

import struct
from fractions import Fraction

import pytest

from proteus.errors import InvalidMedia
from proteus.media.avi import MAX_CHUNKS, probe_avi
from proteus.media.damage import Damaged
from tests.media.corpus_av import Video, judge, same_video, video_bytes

RECIPES = (
    Video(container="avi", codec="mjpeg", pix_fmt="yuvj420p"),
    Video(container="avi", codec="mpeg4", num_frames=1),
    Video(container="avi", codec="mpeg4", num_frames=31, frames_per_s=Fraction(30_000, 1001)),
    Video(container="avi", codec="mpeg4", sound_codec="mp2"),
    Video(container="avi", codec="rawvideo", pix_fmt="bgr24", width_px=50, height_px=34),
    Video(container="avi", codec="mpeg4", frames_per_s=Fraction(2, 5)),
)


def chunk(kind: bytes, *content: bytes) -> bytes:
    inside = b"".join(content)
    return kind + struct.pack("<I", len(inside)) + inside + bytes(len(inside) % 2)


def listed(form: bytes, *content: bytes, kind: bytes = b"LIST") -> bytes:
    return chunk(kind, form, *content)


def stream(medium: bytes = b"vids", *, scale: int = 1, rate: int = 25, length: int = 0, height_px: int = 36) -> bytes:
    head = struct.pack("<4s4sIHHIIIII", medium, b"MJPG", 0, 0, 0, 0, scale, rate, 0, length) + bytes(20)
    form = struct.pack("<IiiHH4s", 40, 64, height_px, 1, 24, b"MJPG") + bytes(20)
    return listed(b"strl", chunk(b"strh", head), chunk(b"strf", form))


def file(*streams: bytes, frames: bytes = b"", more: bytes = b"") -> memoryview:
    head = listed(b"hdrl", chunk(b"avih", bytes(56)), *streams)
    return memoryview(listed(b"AVI ", head, listed(b"movi", frames), kind=b"RIFF") + more)


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_frames_size_and_duration_are_those_decoded(recipe: Video) -> None:
    data = video_bytes(recipe)
    header = probe_avi(memoryview(data))
    assert same_video(header, data)
    assert header.num_frames == recipe.num_frames
    assert header.duration_s == pytest.approx(judge(data, "video").duration_s)


def test_chunks_in_records_and_in_further_riffs_count() -> None:
    frames = chunk(b"00dc", b"abc") + listed(b"rec ", chunk(b"00db", b"abcd"), chunk(b"01wb", b"s"))
    more = listed(b"AVIX", listed(b"movi", chunk(b"00dc", b"abc")), kind=b"RIFF")
    header = probe_avi(file(stream(length=3), frames=frames, more=more))
    assert (header.num_frames, header.duration_s, header.codec) == (3, 3 / 25, "MJPG")


def test_the_picture_stream_need_not_be_the_first() -> None:
    frames = chunk(b"00wb", b"ss") + chunk(b"01dc", b"abc") * 2
    assert probe_avi(file(stream(b"auds"), stream(), frames=frames)).num_frames == 2


def test_an_empty_chunk_lasts_and_is_no_frame() -> None:
    header = probe_avi(file(stream(length=4), frames=chunk(b"00dc", b"abc") + chunk(b"00dc") * 3))
    assert (header.num_frames, header.duration_s) == (1, 4 / 25)


@pytest.mark.parametrize(("told", "lasts_s"), [(0, 2 / 25), (1, 2 / 25), (50, 2.0)])
def test_a_head_that_tells_other_frames_than_there_are_changes_no_count(told: int, lasts_s: float) -> None:
    header = probe_avi(file(stream(length=told), frames=chunk(b"00dc", b"abc") * 2))
    assert (header.num_frames, header.duration_s) == (2, lasts_s)


def test_rows_stored_top_down_have_the_same_height() -> None:
    assert probe_avi(file(stream(height_px=-36))).height_px == 36


def test_case_50_a_rate_of_zero_is_no_duration() -> None:
    header = probe_avi(file(stream(rate=0), frames=chunk(b"00dc", b"abc")))
    assert (header.num_frames, header.duration_s, header.frames_per_s) == (1, 0.0, 0.0)


def test_case_53_a_video_of_no_frames_is_told_as_such() -> None:
    assert probe_avi(file(stream())).num_frames == 0


def test_no_frame_is_read() -> None:
    assert probe_avi(file(stream(), frames=chunk(b"00dc", bytes(99)))) == probe_avi(
        file(stream(), frames=chunk(b"00dc", b"\xff" * 99))
    )


@pytest.mark.parametrize(
    ("medium", "what"),
    [(b"auds", "an avi file with sound and no picture"), (b"txts", "an avi file without a video stream")],
)
def test_a_file_without_pictures_is_named(medium: bytes, what: str) -> None:
    with pytest.raises(InvalidMedia, match=what):
        probe_avi(file(stream(medium)))


def test_a_file_without_streams_is_damage() -> None:
    with pytest.raises(Damaged):
        probe_avi(file())


def test_a_file_cut_anywhere_is_damage() -> None:
    data = file(stream(), frames=chunk(b"00dc", b"abcd") * 2)
    for end in range(len(data)):
        with pytest.raises(Damaged):
            probe_avi(data[:end])


def test_more_chunks_than_are_counted_are_refused() -> None:
    with pytest.raises(InvalidMedia, match=f"limit: {MAX_CHUNKS:,} chunks"):
        probe_avi(file(stream(), frames=chunk(b"00dc") * MAX_CHUNKS))
