"""WebM headers, judged by what PyAV decodes, and by files put together by hand."""

from __future__ import annotations

import struct
from fractions import Fraction

import pytest

from proteus.errors import InvalidMedia
from proteus.media.damage import Damaged
from proteus.media.ebml import MAX_ELEMENTS, MAX_FIELDS, probe_webm
from tests.media.corpus_av import Video, same_video, sound_bytes, video_bytes

RECIPES = (
    Video(container="webm", codec="libvpx"),
    Video(container="webm", codec="libvpx", num_frames=1),
    Video(container="webm", codec="libvpx", num_frames=60, encoder=(("auto-alt-ref", "1"), ("lag-in-frames", "16"))),
    Video(container="webm", codec="libvpx-vp9", num_frames=30, width_px=50, height_px=34),
    Video(container="webm", codec="libvpx", num_frames=31, frames_per_s=Fraction(30_000, 1001), sound_codec="libopus"),
    Video(container="webm", codec="libvpx", num_frames=40, muxer=(("cluster_time_limit", "200"),)),
)
UNKNOWN = b"\x01" + b"\xff" * 7


def element(kind: int, *content: bytes, size: bytes | None = None) -> bytes:
    inside = b"".join(content)
    told = struct.pack(">Q", len(inside) | 1 << 56) if size is None else size
    return kind.to_bytes((kind.bit_length() + 7) // 8, "big") + told + inside


def whole(kind: int, value: int) -> bytes:
    return element(kind, value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big"))


def block(kind: int, tick: int, *, flags: int = 0, track: int = 1, body: bytes = b"\xa5" * 9) -> bytes:
    return element(kind, bytes([0x80 | track]), struct.pack(">hB", tick, flags), body)


HEAD = element(0x1A45DFA3, element(0x4282, b"webm"))
VIDEO = element(0xE0, whole(0xB0, 640), whole(0xBA, 360))
TRACKS = element(0x1654AE6B, element(0xAE, whole(0xD7, 1), whole(0x83, 1), element(0x86, b"V_VP8"), VIDEO))
SOUND_TRACKS = element(0x1654AE6B, element(0xAE, whole(0xD7, 1), whole(0x83, 2), element(0x86, b"A_OPUS")))


def file(*content: bytes, duration: float | None = None) -> memoryview:
    told = [element(0x4489, struct.pack(">d", duration))] if duration is not None else []
    info = element(0x1549A966, whole(0x2AD7B1, 1_000_000), *told)
    return memoryview(HEAD + element(0x18538067, info, *content))


@pytest.mark.parametrize("piped", [False, True], ids=["file", "pipe"])
@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_frames_size_and_duration_are_those_decoded(recipe: Video, piped: bool) -> None:
    data = video_bytes(recipe, piped=piped)
    header = probe_webm(memoryview(data))
    assert same_video(header, data)
    assert header.num_frames == recipe.num_frames
    lasts_s = float(recipe.num_frames / recipe.frames_per_s)
    assert header.duration_s == pytest.approx(lasts_s, abs=0.02)  # times are in ms, and sound may end a frame later


def test_clusters_and_segments_of_unknown_size_are_walked() -> None:
    cluster = whole(0xE7, 0) + block(0xA3, 0) + block(0xA3, 40)
    late = whole(0xE7, 80) + block(0xA3, 0)
    clusters = element(0x1F43B675, cluster, size=UNKNOWN) + element(0x1F43B675, late, size=UNKNOWN)
    header = probe_webm(memoryview(HEAD + element(0x18538067, TRACKS, clusters, size=UNKNOWN)))
    assert (header.num_frames, header.duration_s) == (3, pytest.approx(0.12))


def test_blocks_in_groups_laced_blocks_and_invisible_ones_count_as_shown() -> None:
    group = element(0xA0, block(0xA1, 40), whole(0x9B, 40))
    laced = block(0xA3, 80, flags=0x04, body=b"\x02" + bytes(30))
    invisible, other_track = block(0xA3, 80, flags=0x08), block(0xA3, 0, track=2)
    cluster = element(0x1F43B675, whole(0xE7, 0), block(0xA3, 0), group, laced, invisible, other_track)
    header = probe_webm(file(TRACKS, cluster, duration=200.0))
    assert (header.num_frames, header.duration_s, header.codec) == (5, 0.2, "V_VP8")
    assert (header.width_px, header.height_px) == (640, 360)


def test_a_head_that_tells_less_than_the_blocks_show_is_not_believed() -> None:
    blocks = [block(0xA3, tick) for tick in range(0, 10_000, 100)]
    header = probe_webm(file(TRACKS, element(0x1F43B675, whole(0xE7, 0), *blocks), duration=1.0))
    assert header.duration_s == pytest.approx(10.0)


def test_a_head_without_a_duration_takes_the_rate_of_the_track_for_the_last_frame() -> None:
    entry = element(0xAE, whole(0xD7, 1), whole(0x83, 1), whole(0x23E383, 50_000_000), VIDEO)
    cluster = element(0x1F43B675, whole(0xE7, 0), block(0xA3, 0))
    assert probe_webm(file(element(0x1654AE6B, entry), cluster)).duration_s == pytest.approx(0.05)


def test_case_50_one_frame_without_any_time_has_no_rate() -> None:
    header = probe_webm(file(TRACKS, element(0x1F43B675, whole(0xE7, 0), block(0xA3, 0))))
    assert (header.num_frames, header.duration_s, header.frames_per_s) == (1, 0.0, 0.0)


def test_case_53_a_video_of_no_frames_is_told_as_such() -> None:
    assert probe_webm(file(TRACKS)).num_frames == 0


def test_no_frame_is_read() -> None:
    clusters = [element(0x1F43B675, whole(0xE7, 0), block(0xA3, 0, body=body)) for body in (bytes(50), b"\xff" * 50)]
    assert probe_webm(file(TRACKS, clusters[0])) == probe_webm(file(TRACKS, clusters[1]))


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (sound_bytes("webm", "libopus", 5000, rate_hz=48_000), "a webm file with sound and no picture"),
        (bytes(file(SOUND_TRACKS)), "a webm file with sound and no picture"),
        (bytes(file(element(0x1654AE6B))), "a webm file without a video track"),
        (video_bytes(Video(container="matroska", codec="libvpx")), "a Matroska file that is not WebM"),
        (element(0x1A45DFA3, element(0x4282, b"other")), "an EBML file that is not WebM"),
    ],
)
def test_what_is_no_webm_video_is_named(data: bytes, what: str) -> None:
    with pytest.raises(InvalidMedia, match=what):
        probe_webm(memoryview(data))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        element(0x1F43B675, whole(0xE7, 0), block(0xA3, 0)) + TRACKS,
        TRACKS + element(0xEC, b"", size=b"\xff"),
        TRACKS + element(0xEC, b"", size=b"\x84"),
        TRACKS + b"\x00\x00\x00\x00\x00",
        element(0x1549A966, element(0x4489, struct.pack(">d", float("inf")))) + TRACKS,
        element(0x1549A966, element(0x4489, struct.pack(">f", -1.0))) + TRACKS,
        element(0x1549A966, element(0x4489, b"\0\0\0")) + TRACKS,
        element(0x1549A966, element(0x2AD7B1, bytes(9))) + TRACKS,
        element(0x1549A966, whole(0x2AD7B1, 2**64 - 1), element(0x4489, struct.pack(">d", 1e308))) + TRACKS,
    ],
    ids=[
        "nothing", "frames before tracks", "an unknown size that may not be", "a size over the end", "zeros",
        "endless", "before it began", "a real of three bytes", "a number of nine bytes", "endless in the end",
    ],
)  # fmt: skip
def test_what_breaks_the_rules_is_damage(content: bytes) -> None:
    with pytest.raises(Damaged):
        probe_webm(memoryview(HEAD + element(0x18538067, content)))


def test_a_file_cut_anywhere_is_damage_when_its_size_was_told() -> None:
    data = video_bytes(Video(container="webm", codec="libvpx"))
    for end in (len(data) - 1, len(data) // 2, len(data) // 3):
        with pytest.raises(Damaged):
            probe_webm(memoryview(data[:end]))


def test_more_elements_than_are_counted_are_refused() -> None:
    with pytest.raises(InvalidMedia, match=f"limit: {MAX_ELEMENTS:,} elements"):
        probe_webm(file(TRACKS, element(0x1F43B675, b"\xec\x80" * MAX_ELEMENTS)))


@pytest.mark.parametrize("kind", [0x1549A966, 0x1654AE6B], ids=["info", "tracks"])
def test_more_fields_than_are_read_are_refused(kind: int) -> None:
    with pytest.raises(InvalidMedia, match=f"limit: {MAX_FIELDS:,} fields"):
        probe_webm(memoryview(HEAD + element(0x18538067, element(kind, b"\xec\x80" * (MAX_FIELDS + 1)))))


def test_only_the_first_info_counts() -> None:
    later = element(0x1549A966, element(0x4489, struct.pack(">d", 9e9)))
    assert probe_webm(file(later, TRACKS, duration=200.0)).duration_s == 0.2
