"""Seen: a rate of 0 frames/s divides by zero, 0.4 rounds to 0 (50); an MP4 cut by an edit list is sampled over frames
that nobody sees (52); a clip of no frames or no pictures is accepted (53); a list of JPEGs joined by commas has no end
(55); stereo is resampled along its channels and comes out three times as long (56). Behind the missing 51, 54 and 57:
half a file, a clip as a picture and the reverse, a rate nobody reads, a sound of no samples.

Cause: counts were taken from the head of a file without asking what is shown, and used before they were looked at.
Right: `proteus cost`, which plans as the server does, counts what is shown, and refuses the rest by name. Files are
made here, so that the number that a wrong reading would give is known and differs from the right one.
"""

from __future__ import annotations

import base64
import io
import json
import struct
import wave
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from proteus.cli import app
from proteus.errors import InvalidMedia, InvalidPicture, InvalidRequest
from proteus.limits import VideoLimits
from proteus.media.accept import accept_video
from proteus.media.header import VideoHeader
from proteus.media.probe import probe
from tests.bugs.door import asked, text, untouched
from tests.bugs.folders import PUBLISHED
from tests.door.test_chat import Models
from tests.media.corpus_av import Video, cut_mp4, patched, sound_bytes, video_bytes
from tests.media.test_avi import chunk, file, stream
from tests.preprocess.pictures import encode, noise

Cost = Callable[..., dict[str, Any]]
LIMITS = VideoLimits(
    formats=["mp4", "mov", "webm", "avi"],
    max_bytes=10_000_000,
    max_seconds=60.0,
    max_frame_pixels=2_500_000,
    max_videos=1,
    sample_frames_per_s=2.0,
    max_frames=32,
)
PLAIN = Video(container="mp4", codec="mpeg4")
WITHOUT_RATE = {
    "avi": bytes(file(stream(rate=0), frames=chunk(b"00dc", b"abc") * 6)),
    "mp4": patched(video_bytes(PLAIN), video_bytes(PLAIN).index(b"mdhd") + 16, bytes(4)).replace(b"elst", b"free"),
}
ONLY_SOUND = {name: sound_bytes(name, "aac", 5000) for name in ("mp4", "mov")}


@pytest.fixture
def told(tmp_path: Path) -> Callable[..., tuple[int, str, str]]:
    """Exit code, output and error of `proteus cost` on a file's bytes, by a published checkpoint's config files."""

    def run(checkpoint: str, data: bytes, *options: str) -> tuple[int, str, str]:
        folder, medium = tmp_path / checkpoint, tmp_path / "medium.jpg"  # the name lies
        folder.mkdir(exist_ok=True)
        for name, document in PUBLISHED[checkpoint].items():
            (folder / name).write_text(json.dumps(document), encoding="utf-8")
        medium.write_bytes(data)
        done = CliRunner().invoke(app, ["cost", str(medium), "--checkpoint", str(folder), "--json", *options])
        return done.exit_code, done.stdout, done.stderr

    return run


@pytest.fixture
def cost(told: Callable[..., tuple[int, str, str]]) -> Cost:
    def run(checkpoint: str, data: bytes, *options: str) -> dict[str, Any]:
        code, out, error = told(checkpoint, data, *options)
        assert (code, error) == (0, "")
        (medium,) = json.loads(out)["media"]
        return dict(medium)

    return run


def wav(num_samples: int, channels: int, rate_hz: int = 48_000) -> bytes:
    """A tone in the last channel only."""
    out = io.BytesIO()
    with wave.open(out, "wb") as sound:
        sound.setnchannels(channels)
        sound.setsampwidth(2)
        sound.setframerate(rate_hz)
        quiet = bytes(2 * (channels - 1))
        sound.writeframes(b"".join(quiet + struct.pack("<h", index % 99) for index in range(num_samples)))
    return out.getvalue()


# --- 50: rates ---


@pytest.mark.parametrize("name", WITHOUT_RATE)
def test_video_without_a_rate_is_refused_under_a_contract_and_counted_frame_by_frame_without(
    name: str, cost: Cost
) -> None:
    data = WITHOUT_RATE[name]
    header = probe(data)
    assert isinstance(header, VideoHeader)
    assert header.frames_per_s == 0.0
    with pytest.raises(InvalidMedia, match="the video has no duration; fix: "):
        accept_video(header, len(data), LIMITS)
    assert len(cost("Qwen2-VL-7B", data)["frame_indices"]) == header.num_frames > 1


@pytest.mark.parametrize("container", ["mp4", "avi", "mov"])
def test_rate_that_rounds_to_zero_takes_every_frame_it_has_time_for(container: str, cost: Cost) -> None:
    data = video_bytes(Video(container=container, codec="mpeg4", frames_per_s=Fraction(2, 5)))
    planned = cost("Qwen2-VL-7B", data)
    assert planned["media_ms"] == 25_000
    assert planned["frame_indices"] == list(range(10))
    assert cost("Qwen2-VL-7B", data, "--frames-per-s", "0.1")["frame_indices"] == [0, 5]


# --- 52: edit lists ---


def test_cut_video_is_sampled_over_the_frames_that_are_shown(cost: Cost) -> None:
    whole = video_bytes(Video(container="mp4", codec="libx264", num_frames=120, encoder=(("g", "120"),)))
    shown = cut_mp4(whole, first=81, end=93)
    planned = cost("Qwen2-VL-7B", shown, "--frames-per-s", "12.6")
    assert (planned["size"], planned["media_ms"]) == ("48x32 px, 6 of 12 frames", 480)
    assert planned["frame_indices"] == [0, 2, 4, 6, 8, 10]


# --- 53: nothing to see ---


@pytest.mark.parametrize("name", ONLY_SOUND)
@pytest.mark.parametrize("checkpoint", ["Qwen2-VL-7B", "LLaVA-1.5-7B"])
def test_video_of_sound_alone_is_refused_by_name(
    name: str, checkpoint: str, told: Callable[..., tuple[int, str, str]]
) -> None:
    code, out, error = told(checkpoint, ONLY_SOUND[name])
    assert (code, out) == (1, "")
    assert "sound and no picture" in error
    assert "; fix: " in error


def test_video_of_no_frames_is_refused_with_and_without_a_contract(
    told: Callable[..., tuple[int, str, str]],
) -> None:
    empty = bytes(file(stream()))
    code, _, error = told("Qwen2-VL-7B", empty)
    assert code == 1
    assert "a clip of 0 frames; limit: " in error
    header = probe(empty)
    assert isinstance(header, VideoHeader)
    with pytest.raises(InvalidMedia, match="the video has 0 frames"):
        accept_video(header, len(empty), LIMITS)


# --- 55: lists in a data URI ---


@pytest.mark.parametrize("kind", ["video/jpeg", "image/jpeg"])
@pytest.mark.parametrize("number", [2, 5000])
def test_list_of_jpegs_joined_by_commas_is_refused_before_it_is_split(kind: str, number: int) -> None:
    one = base64.b64encode(encode(noise(8, 8), "JPEG", quality=5)).decode()
    models = Models()
    part = {"type": "image_url", "image_url": {"url": f"data:{kind};base64," + ",".join([one] * number)}}
    with pytest.raises(InvalidMedia, match="picture 1: (character|the base64)"):
        asked(content=[part, text("?")], models=models)
    assert untouched(models)


@pytest.mark.parametrize("number", [257, 5000])
def test_as_many_parts_are_refused_by_their_number(number: int) -> None:
    one = {"type": "image", "data": base64.b64encode(encode(noise(8, 8), "JPEG", quality=5)).decode()}
    with pytest.raises(InvalidRequest, match=rf"{number:,} parts; limit: \[text\] max_parts = 256"):
        asked(content=[one] * number)


# --- 56: channels ---


@pytest.mark.parametrize("channels", [1, 2, 6])
@pytest.mark.parametrize("rate_hz", [8_000, 44_100, 48_000])
def test_sound_lasts_as_long_whatever_its_channels_and_rate(channels: int, rate_hz: int, cost: Cost) -> None:
    planned = cost("Qwen2-Audio-7B", wav(3 * rate_hz, channels, rate_hz))
    assert (planned["media_ms"], planned["decode_bytes"]) == (3000, 4 * 3 * 16_000)
    assert planned["visual_tokens"] == 75


# --- 51, 54, 57: what is no clip, or no picture ---


@pytest.mark.parametrize("checkpoint", ["Qwen2-Audio-7B", "whisper-large-v3"])
def test_sound_of_no_samples_is_refused(checkpoint: str, told: Callable[..., tuple[int, str, str]]) -> None:
    code, _, error = told(checkpoint, wav(0, 1))
    assert code == 1
    assert "; fix: " in error


@pytest.mark.parametrize("share", [0.3, 0.6, 0.99])
def test_half_a_video_is_damaged_and_not_shorter(share: float, told: Callable[..., tuple[int, str, str]]) -> None:
    whole = video_bytes(Video(container="mp4", codec="libx264", num_frames=30))
    code, out, error = told("Qwen2-VL-7B", whole[: int(len(whole) * share)])
    assert (code, out) == (1, "")
    assert "the video starts as mp4 but is truncated or damaged; fix: send the whole, intact file" in error


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (video_bytes(PLAIN), "a video of format mp4"),
        (video_bytes(Video(container="webm", codec="libvpx")), "a video of format webm"),
        (wav(500, 2), "an audio clip of format wav"),
        (sound_bytes("mp3", "libmp3lame", 5000), "an audio clip of format mp3"),
    ],
    ids=["mp4", "webm", "wav", "mp3"],
)
def test_clip_sent_as_a_picture_is_refused_by_what_it_is(data: bytes, words: str) -> None:
    models = Models()
    uri = "data:image/png;base64," + base64.b64encode(data).decode()
    with pytest.raises(InvalidPicture, match=f"picture 1: {words}; limit: formats read: png, .*; fix: convert"):
        asked(content=[{"type": "image_url", "image_url": {"url": uri}}], models=models)
    assert untouched(models)
