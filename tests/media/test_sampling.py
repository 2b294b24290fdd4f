"""Which frames are taken from a video, and how long a resampled sound is."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proteus.media.header import AudioHeader, VideoHeader
from proteus.media.sampling import sample_frames, samples_at


def video(num_frames: int, duration_s: float) -> VideoHeader:
    return VideoHeader(
        format="mp4", width_px=64, height_px=48, num_frames=num_frames, duration_s=duration_s, codec="avc1"
    )


def sound(num_samples: int, rate_hz: int) -> AudioHeader:
    return AudioHeader(format="wav", sample_rate_hz=rate_hz, channels=1, duration_s=num_samples / rate_hz, codec="pcm")


@pytest.mark.parametrize(
    ("header", "frames_per_s", "max_frames", "taken"),
    [
        (video(100, 4.0), 2.0, 32, (0, 12, 25, 37, 50, 62, 75, 87)),
        (video(100, 4.0), 2.0, 4, (0, 25, 50, 75)),
        (video(12, 0.48), 2.0, 32, (0,)),
        (video(3, 60.0), 2.0, 32, (0, 1, 2)),
        (video(1, 0.0), 2.0, 32, (0,)),
        (video(64, 0.0), 2.0, 4, (0, 16, 32, 48)),
        (video(4, 10.0), 2.0, 32, (0, 1, 2, 3)),
        (video(1500, 60.0), 2.0, 32, tuple(index * 1500 // 32 for index in range(32))),
        (video(0, 0.0), 2.0, 32, ()),
        (video(0, 5.0), 2.0, 32, ()),
        (video(10, 1e300), 1e300, 5, (0, 2, 4, 6, 8)),
    ],
    ids=[
        "two a second", "the cap", "case 52: 12 shown", "fewer than wanted", "one frame", "case 50: no rate",
        "case 50: 0.4 frames/s", "a long video", "case 53: no frames", "case 53: no frames but a duration", "endless",
    ],
)  # fmt: skip
def test_the_frames_taken_are(
    header: VideoHeader, frames_per_s: float, max_frames: int, taken: tuple[int, ...]
) -> None:
    assert sample_frames(header, frames_per_s=frames_per_s, max_frames=max_frames) == taken


@settings(max_examples=200, deadline=None)
@given(
    num_frames=st.integers(0, 100_000),
    duration_s=st.floats(0, 1e6),
    frames_per_s=st.floats(0.001, 1000),
    max_frames=st.integers(1, 256),
)
def test_frames_are_spread_evenly_and_never_more_than_allowed(
    num_frames: int, duration_s: float, frames_per_s: float, max_frames: int
) -> None:
    taken = sample_frames(video(num_frames, duration_s), frames_per_s=frames_per_s, max_frames=max_frames)
    assert min(1, num_frames) <= len(taken) <= min(num_frames, max_frames)
    assert all(0 <= index < num_frames for index in taken)
    gaps = [after - before for before, after in pairwise((*taken, num_frames))]
    assert not gaps or (min(gaps) >= 1 and max(gaps) - min(gaps) <= 1)
    if duration_s > 0:
        assert len(taken) <= max(1, duration_s * frames_per_s)


@pytest.mark.parametrize(
    ("num_samples", "rate_hz", "new_rate_hz", "num_new"),
    [
        (16_000, 16_000, 16_000, 16_000), (44_100, 44_100, 16_000, 16_000), (44_101, 44_100, 16_000, 16_001),
        (1, 48_000, 16_000, 1), (0, 48_000, 16_000, 0), (3, 8_000, 16_000, 6), (5, 11_025, 16_000, 8),
    ],
)  # fmt: skip
def test_a_resampled_sound_has_a_sample_for_every_begun_period(
    num_samples: int, rate_hz: int, new_rate_hz: int, num_new: int
) -> None:
    assert samples_at(sound(num_samples, rate_hz), new_rate_hz) == num_new


@settings(max_examples=200, deadline=None)
@given(num_samples=st.integers(0, 2**40), rate_hz=st.integers(1, 200_000), new_rate_hz=st.integers(1, 200_000))
def test_seconds_lose_no_sample(num_samples: int, rate_hz: int, new_rate_hz: int) -> None:
    exact = math.ceil(num_samples * new_rate_hz / rate_hz) if num_samples * new_rate_hz < 2**50 else None
    header = sound(num_samples, rate_hz)
    assert samples_at(header, rate_hz) == num_samples
    assert exact is None or samples_at(header, new_rate_hz) == exact
