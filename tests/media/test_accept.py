from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proteus.errors import InvalidMedia, InvalidPicture, MediaTooLarge, ProteusError
from proteus.limits import AudioLimits, ImageLimits, VideoLimits
from proteus.media.accept import accept_audio, accept_picture, accept_video, check_bytes, check_count
from proteus.media.header import AudioHeader, PictureHeader, VideoHeader

IMAGE = ImageLimits(
    formats=["png", "jpeg"],
    max_bytes=200_000,
    max_pixels=1_000_000,
    min_side_px=8,
    max_side_px=2_000,
    max_aspect_ratio=20.5,
    max_pictures=4,
    animation="first_frame",
    max_animation_frames=3,
    background="#ffffff",
)
NO_ANIMATION = IMAGE.model_copy(update={"animation": "refuse"})
VIDEO = VideoLimits(
    formats=["mp4", "webm"],
    max_bytes=1_000_000,
    max_seconds=60.5,
    max_frame_pixels=2_500_000,
    max_videos=1,
    sample_frames_per_s=2.0,
    max_frames=32,
)
AUDIO = AudioLimits(
    formats=["wav"],
    max_bytes=50_000,
    max_seconds=30.0,
    min_sample_rate_hz=8_000,
    max_sample_rate_hz=48_000,
    max_channels=2,
    max_clips=1,
)


def picture(**changes: Any) -> PictureHeader:
    return PictureHeader(**{"format": "png", "width_px": 640, "height_px": 480, **changes})


def video(**changes: Any) -> VideoHeader:
    facts = {"format": "mp4", "width_px": 640, "height_px": 480, "num_frames": 50, "duration_s": 2.0, "codec": "avc1"}
    return VideoHeader(**{**facts, **changes})


def audio(**changes: Any) -> AudioHeader:
    facts = {"format": "wav", "sample_rate_hz": 16_000, "channels": 1, "duration_s": 2.0, "codec": "pcm"}
    return AudioHeader(**{**facts, **changes})


def told(error: ProteusError, words: list[str]) -> None:
    assert error.fix
    for word in words:
        assert word in str(error)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"width_px": 1, "height_px": 1}, InvalidPicture, ["1x1 px", "[image] min_side_px = 8", "larger picture"]),
        ({"width_px": 224, "height_px": 1}, InvalidPicture, ["224x1 px", "min_side_px = 8"]),
        ({"width_px": 0, "height_px": 0}, InvalidPicture, ["0x0 px", "min_side_px = 8"]),
        ({"width_px": 2_001, "height_px": 200}, MediaTooLarge, ["2001x200 px", "[image] max_side_px = 2,000"]),
        ({"width_px": 1_001, "height_px": 1_000}, MediaTooLarge, ["1,001,000 px", "[image] max_pixels = 1,000,000"]),
        ({"width_px": 8, "height_px": 165}, InvalidPicture, ["8x165 px", "[image] max_aspect_ratio = 20.5", "crop"]),
        ({"width_px": 165, "height_px": 8}, InvalidPicture, ["165x8 px", "max_aspect_ratio = 20.5"]),
        ({"format": "gif"}, InvalidPicture, ["a picture of format gif", "[image] formats = png, jpeg", "convert"]),
        ({"num_frames": 4}, MediaTooLarge, ["4 frames", "[image] max_animation_frames = 3"]),
        ({"num_frames": 0}, InvalidPicture, ["0 frames"]),
    ],
)
def test_unfit_picture_is_refused_by_value_limit_and_fix(
    changes: dict[str, Any], error: type[ProteusError], words: list[str]
) -> None:
    with pytest.raises(error) as caught:
        accept_picture(picture(**changes), 1_000, IMAGE)
    told(caught.value, words)


@pytest.mark.parametrize(("width_px", "height_px"), [(8, 8), (8, 164), (164, 8), (2_000, 500), (1_000, 1_000)])
@pytest.mark.parametrize("orientation", [1, 6])
def test_picture_at_the_limits_passes_however_it_is_turned(width_px: int, height_px: int, orientation: int) -> None:
    header = picture(width_px=width_px, height_px=height_px, orientation=orientation, num_frames=3)
    accept_picture(header, 200_000, IMAGE)


def test_animation_is_refused_where_the_contract_says_so() -> None:
    accept_picture(picture(num_frames=1), 1_000, NO_ANIMATION)
    with pytest.raises(InvalidPicture) as caught:
        accept_picture(picture(num_frames=2), 1_000, NO_ANIMATION)
    told(caught.value, ["2 frames", "[image] animation = refuse", "one frame"])


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"num_frames": 0}, InvalidMedia, ["the video has 0 frames", "at least one frame"]),
        ({"duration_s": 0.0}, InvalidMedia, ["the video has no duration", "whole video"]),
        ({"duration_s": -1.0}, InvalidMedia, ["no duration"]),
        ({"duration_s": math.nan}, InvalidMedia, ["no duration"]),
        ({"duration_s": math.inf}, MediaTooLarge, ["lasts inf s"]),
        ({"num_frames": 0, "duration_s": 0.0}, InvalidMedia, ["0 frames"]),
        ({"width_px": 0}, InvalidMedia, ["frames of 0x480 px", "track of pictures"]),
        ({"height_px": 0}, InvalidMedia, ["frames of 640x0 px"]),
        ({"format": "avi"}, InvalidMedia, ["a video of format avi", "[video] formats = mp4, webm"]),
        ({"duration_s": 60.51}, MediaTooLarge, ["lasts 60.51 s", "[video] max_seconds = 60.5", "shorter video"]),
        (
            {"width_px": 2_000, "height_px": 1_251},
            MediaTooLarge,
            ["2000x1251 px = 2,502,000 px", "[video] max_frame_pixels = 2,500,000", "smaller frames"],
        ),
    ],
)
def test_unfit_video_is_refused_by_value_limit_and_fix(
    changes: dict[str, Any], error: type[ProteusError], words: list[str]
) -> None:
    with pytest.raises(error) as caught:
        accept_video(video(**changes), 1_000, VIDEO)
    told(caught.value, words)


@pytest.mark.parametrize("changes", [{}, {"num_frames": 12, "duration_s": 30.0}, {"num_frames": 1}])
def test_video_of_few_frames_per_second_passes(changes: dict[str, Any]) -> None:
    accept_video(video(**changes), 1_000_000, VIDEO)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"duration_s": 0.0}, InvalidMedia, ["the audio clip has no duration"]),
        ({"duration_s": 30.25}, MediaTooLarge, ["lasts 30.25 s", "[audio] max_seconds = 30"]),
        ({"sample_rate_hz": 0}, InvalidMedia, ["has 0 samples per second", "[audio] min_sample_rate_hz = 8,000"]),
        ({"sample_rate_hz": 48_001}, InvalidMedia, ["48,001", "[audio] max_sample_rate_hz = 48,000", "resample"]),
        ({"channels": 0}, InvalidMedia, ["0 channels"]),
        ({"channels": 6}, MediaTooLarge, ["6 channels", "[audio] max_channels = 2", "mix"]),
        ({"format": "mp3"}, InvalidMedia, ["an audio clip of format mp3", "[audio] formats = wav"]),
    ],
)
def test_unfit_audio_is_refused_by_value_limit_and_fix(
    changes: dict[str, Any], error: type[ProteusError], words: list[str]
) -> None:
    with pytest.raises(error) as caught:
        accept_audio(audio(**changes), 1_000, AUDIO)
    told(caught.value, words)


def test_audio_at_the_limits_passes() -> None:
    for rate_hz in (8_000, 48_000):
        accept_audio(audio(sample_rate_hz=rate_hz, channels=2, duration_s=30.0), 50_000, AUDIO)


@pytest.mark.parametrize(
    ("limits", "invalid", "noun", "table"),
    [
        (IMAGE, InvalidPicture, "picture", "[image] max_bytes = 200,000"),
        (VIDEO, InvalidMedia, "video", "[video] max_bytes = 1,000,000"),
        (AUDIO, InvalidMedia, "audio clip", "[audio] max_bytes = 50,000"),
    ],
    ids=["image", "video", "audio"],
)
def test_bytes_are_counted_before_any_header_is_read(
    limits: ImageLimits | VideoLimits | AudioLimits, invalid: type[InvalidMedia], noun: str, table: str
) -> None:
    check_bytes(limits.max_bytes, limits)
    with pytest.raises(MediaTooLarge) as caught:
        check_bytes(limits.max_bytes + 1, limits)
    told(caught.value, [f"the {noun} has {limits.max_bytes + 1:,} bytes", table])
    with pytest.raises(invalid) as empty:
        check_bytes(0, limits)
    told(empty.value, [f"the {noun} is empty (0 bytes)", f"bytes of a{'n' * (noun[0] == 'a')} {noun} file"])


def test_too_many_bytes_are_refused_whatever_the_header_says() -> None:
    with pytest.raises(MediaTooLarge, match="200,001 bytes"):
        accept_picture(picture(width_px=1), 200_001, IMAGE)
    with pytest.raises(MediaTooLarge, match="1,000,001 bytes"):
        accept_video(video(num_frames=0), 1_000_001, VIDEO)
    with pytest.raises(MediaTooLarge, match="50,001 bytes"):
        accept_audio(audio(channels=0), 50_001, AUDIO)


@pytest.mark.parametrize(
    ("limits", "number", "words"),
    [
        (IMAGE, 5, ["5 pictures in one request", "[image] max_pictures = 4", "send fewer pictures"]),
        (VIDEO, 2, ["2 videos in one request", "[video] max_videos = 1"]),
        (AUDIO, 2, ["2 audio clips in one request", "[audio] max_clips = 1"]),
    ],
    ids=["image", "video", "audio"],
)
def test_one_medium_more_than_allowed_is_refused(
    limits: ImageLimits | VideoLimits | AudioLimits, number: int, words: list[str]
) -> None:
    check_count(number - 1, limits)
    with pytest.raises(MediaTooLarge) as caught:
        check_count(number, limits)
    told(caught.value, words)


def test_deployment_that_reads_no_video_says_so() -> None:
    with pytest.raises(InvalidMedia) as caught:
        accept_video(video(), 1_000, VIDEO.model_copy(update={"formats": []}))
    told(caught.value, ["[video] formats = none", "this deployment reads none"])


@given(st.integers(0, 2_500), st.integers(0, 2_500), st.integers(-1, 250_000))
def test_accepted_picture_is_within_every_limit(width_px: int, height_px: int, num_bytes: int) -> None:
    try:
        accept_picture(picture(width_px=width_px, height_px=height_px), num_bytes, IMAGE)
    except (InvalidPicture, MediaTooLarge):
        return
    assert 0 < num_bytes <= IMAGE.max_bytes and width_px * height_px <= IMAGE.max_pixels
    assert IMAGE.min_side_px <= min(width_px, height_px) and max(width_px, height_px) <= IMAGE.max_side_px


@given(st.floats() | st.floats(0, 70), st.integers(-1, 10_000))
def test_accepted_video_has_a_rate_of_frames(duration_s: float, num_frames: int) -> None:
    header = video(duration_s=duration_s, num_frames=num_frames)
    try:
        accept_video(header, 1_000, VIDEO)
    except (InvalidMedia, MediaTooLarge):
        return
    assert header.frames_per_s > 0
