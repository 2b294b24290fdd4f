"""Video and audio cut anywhere or with bytes turned: a header, or one of our errors, and never anything else."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proteus.errors import InvalidMedia
from proteus.media.damage import Damaged
from proteus.media.header import AudioHeader, VideoHeader
from proteus.media.probe import PROBES, probe
from tests.media.corpus_av import SOUNDS, VIDEOS

FILES: Mapping[str, Callable[[], bytes]] = {**VIDEOS, **SOUNDS}
# Their head tells a number that the cut file no longer holds; the others lose only what is cut off.
TOLD_WHOLE = ("mp4", "mov", "webm", "avi", "mp3")


@cache
def file(name: str) -> bytes:
    return FILES[name]()


def outcome(name: str, data: bytes) -> VideoHeader | AudioHeader | None:
    """What the reader of that file says, None where it refuses; any other exception is a failure of the test."""
    try:
        header = PROBES[name.split()[0]](memoryview(data))
    except (Damaged, InvalidMedia):
        return None
    assert isinstance(header, VideoHeader | AudioHeader)
    assert math.isfinite(header.duration_s) and header.duration_s >= 0
    if isinstance(header, VideoHeader):
        assert header.num_frames >= 0 and header.width_px >= 0 and header.height_px >= 0
    else:
        assert header.sample_rate_hz > 0 and header.channels > 0
    return header


@pytest.mark.parametrize("name", FILES)
def test_a_whole_file_is_read_and_told_by_its_content(name: str) -> None:
    header = probe(file(name))
    assert header == outcome(name, file(name))
    assert header.format == name.split()[0]


@pytest.mark.parametrize("name", FILES)
def test_a_file_cut_anywhere_is_refused_or_told_for_what_is_left(name: str) -> None:
    data = file(name)
    whole = outcome(name, data)
    assert whole is not None
    for end in (*range(min(len(data), 500)), *range(500, len(data), max(1, len(data) // 500))):
        header = outcome(name, data[:end])
        if header is not None:
            assert name not in TOLD_WHOLE
            assert header.duration_s <= whole.duration_s


@pytest.mark.parametrize("name", FILES)
@settings(max_examples=80, deadline=None)
@given(flips=st.lists(st.tuples(st.integers(0, 1 << 30), st.integers(1, 255)), min_size=1, max_size=8))
def test_turned_bytes_are_refused_or_read(name: str, flips: list[tuple[int, int]]) -> None:
    data = bytearray(file(name))
    head_bytes = min(len(data), 1500)  # where headers are; MP4's stand at the end
    for place, turn in flips:
        data[place % head_bytes if place % 2 else -1 - place % head_bytes] ^= turn
    outcome(name, bytes(data))


@pytest.mark.parametrize("name", FILES)
@settings(max_examples=30, deadline=None)
@given(content=st.binary(max_size=400), kept=st.integers(0, 300))
def test_any_bytes_behind_a_true_start_are_refused_or_read(name: str, content: bytes, kept: int) -> None:
    outcome(name, file(name)[:kept] + content)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mp4", "the video starts as mp4 but is truncated or damaged; fix: send the whole, intact file"),
        ("mov", "the video starts as mov but is truncated or damaged; fix: send the whole, intact file"),
        ("webm", "the video starts as webm but is truncated or damaged; fix: send the whole, intact file"),
    ],
)
def test_a_broken_file_has_a_fixed_text(name: str, text: str) -> None:
    with pytest.raises(InvalidMedia) as caught:
        probe(file(name)[:-1])
    assert str(caught.value) == f"invalid_media: {text}"
