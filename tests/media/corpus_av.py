"""Videos and sounds made in code with PyAV, and what PyAV finds in them: the judge of our header readers."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import av
import numpy as np
import numpy.typing as npt

from proteus.media.header import AudioHeader, VideoHeader

SOUND_RATE_HZ = 48_000
MP4_TICKS_PER_FRAME = 512  # of the MP4 muxer at 25 frames/s


@dataclass(frozen=True, kw_only=True)
class Video:
    """Recipe of a video; frames are a moving ramp, so that no encoder drops one."""

    container: str
    codec: str
    width_px: int = 48
    height_px: int = 32
    num_frames: int = 10
    frames_per_s: Fraction = Fraction(25)
    pix_fmt: str = "yuv420p"
    sound_codec: str | None = None  # of a second track
    muxer: tuple[tuple[str, str], ...] = ()  # options
    encoder: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        options = [f"{key}={value}" for key, value in self.muxer + self.encoder]
        sound = [self.sound_codec] if self.sound_codec else []
        return "-".join([self.container, self.codec, f"{self.num_frames}f", *sound, *options])


class Pipe:
    """A file that can only be written to: muxers cannot come back to fill in sizes."""

    def __init__(self) -> None:
        self.content = bytearray()

    def write(self, data: bytes) -> int:
        self.content += data
        return len(data)


@functools.cache
def video_bytes(recipe: Video, *, piped: bool = False) -> bytes:
    """The encoded file, written to a pipe if `piped`."""
    out: Any = Pipe() if piped else io.BytesIO()
    with av.open(out, "w", format=recipe.container, container_options=dict(recipe.muxer)) as file:
        stream: Any = file.add_stream(recipe.codec, rate=recipe.frames_per_s, options=dict(recipe.encoder))
        stream.width, stream.height, stream.pix_fmt = recipe.width_px, recipe.height_px, recipe.pix_fmt
        stream.codec_context.thread_count = 1
        sound: Any = None
        if recipe.sound_codec is not None:
            sound = file.add_stream(recipe.sound_codec, rate=SOUND_RATE_HZ, layout="mono")
        for index in range(recipe.num_frames):
            file.mux(stream.encode(_ramp(recipe, index)))
        file.mux(stream.encode())
        if sound is not None:
            _write_sound(file, sound, _tone(int(SOUND_RATE_HZ * recipe.num_frames / recipe.frames_per_s), 1))
    return bytes(out.content if piped else out.getvalue())


def sound_bytes(
    container: str,
    codec: str,
    num_samples: int,
    *,
    rate_hz: int = 44_100,
    channels: int = 1,
    muxer: Mapping[str, str] | None = None,
    piped: bool = False,
) -> bytes:
    """An encoded sound made from `num_samples`."""
    out: Any = Pipe() if piped else io.BytesIO()
    layout = "mono" if channels == 1 else "stereo"
    with av.open(out, "w", format=container, container_options=dict(muxer or {})) as file:
        stream: Any = file.add_stream(codec, rate=rate_hz, layout=layout, options={"strict": "experimental"})
        _write_sound(file, stream, _tone(num_samples, channels))
    return bytes(out.content if piped else out.getvalue())


def _ramp(recipe: Video, index: int) -> av.VideoFrame:
    columns = ((np.arange(recipe.width_px) * 5 + index * 7) % 256).astype(np.uint8)
    pixels = np.tile(columns[None, :, None], (recipe.height_px, 1, 3))
    return av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(format=recipe.pix_fmt)


def _tone(num_samples: int, channels: int) -> npt.NDArray[np.int16]:
    """(channels, samples) of a quiet sawtooth."""
    return np.tile(((np.arange(num_samples) * 37) % 2000 - 1000).astype(np.int16), (channels, 1))


def _write_sound(file: Any, stream: Any, samples: npt.NDArray[np.int16]) -> None:
    layout = "mono" if samples.shape[0] == 1 else "stereo"
    frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(samples.T).reshape(1, -1), format="s16", layout=layout)
    frame.sample_rate, frame.pts, frame.time_base = stream.rate, 0, Fraction(1, stream.rate)
    resampler = av.AudioResampler(format=stream.codec_context.format or "s16", layout=layout, rate=stream.rate)
    for part in resampler.resample(frame):
        file.mux(stream.encode(part))
    file.mux(stream.encode())


def cut_mp4(data: bytes, *, first: int, end: int) -> bytes:
    """Frames [first, end) of an MP4 of 25 frames/s as `ffmpeg -ss … -t … -c copy` cuts them: all samples before `end`
    are kept, because later ones are coded from them, and an edit list shows those from `first` on.
    """
    out = io.BytesIO()
    with av.open(io.BytesIO(data)) as source, av.open(out, "w", format="mp4") as target:
        stream = source.streams.video[0]
        copy = target.add_stream_from_template(stream)
        for packet in source.demux(stream):
            if packet.pts is None or packet.dts is None or packet.pts >= end * MP4_TICKS_PER_FRAME:
                continue
            packet.pts -= first * MP4_TICKS_PER_FRAME
            packet.dts -= first * MP4_TICKS_PER_FRAME
            packet.stream = copy
            target.mux(packet)
    return out.getvalue()


@dataclass(frozen=True, kw_only=True)
class Found:
    """What PyAV finds in the first stream of a kind."""

    num_frames: int  # decoded
    num_samples: int  # decoded, of sound
    duration_s: float  # as the container tells; 0 where it tells none
    size_px: tuple[int, int]
    rate_hz: int
    channels: int


@functools.cache
def judge(data: bytes, kind: str) -> Found:
    """`kind` is video or audio."""
    with av.open(io.BytesIO(data)) as file:
        stream: Any = file.streams.get({kind: 0})[0]
        stream.codec_context.thread_count = 1
        frames: list[Any] = list(file.decode(stream))
        return Found(
            num_frames=len(frames),
            num_samples=sum(frame.samples for frame in frames) if kind == "audio" else 0,
            duration_s=float(stream.duration * stream.time_base) if stream.duration else 0.0,
            size_px=(stream.width, stream.height) if kind == "video" else (0, 0),
            rate_hz=stream.rate if kind == "audio" else 0,
            channels=stream.channels if kind == "audio" else 0,
        )


def same_video(header: VideoHeader, data: bytes) -> bool:
    """Frames and sides as PyAV has them."""
    found = judge(data, "video")
    return (header.num_frames, header.width_px, header.height_px) == (found.num_frames, *found.size_px)


def num_samples(header: AudioHeader) -> int:
    return round(header.duration_s * header.sample_rate_hz)


def same_sound(header: AudioHeader, data: bytes) -> bool:
    """Samples, rate and channels as PyAV has them."""
    found = judge(data, "audio")
    told = (num_samples(header), header.sample_rate_hz, header.channels)
    return told == (found.num_samples, found.rate_hz, found.channels)


def patched(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


VIDEOS: Mapping[str, Callable[[], bytes]] = {
    "mp4": lambda: video_bytes(Video(container="mp4", codec="libx264", sound_codec="aac")),
    "mp4 in fragments": lambda: video_bytes(
        Video(container="mp4", codec="mpeg4", muxer=(("movflags", "frag_keyframe+empty_moov"),), encoder=(("g", "3"),))
    ),
    "mov": lambda: video_bytes(Video(container="mov", codec="mjpeg", pix_fmt="yuvj420p")),
    "webm": lambda: video_bytes(Video(container="webm", codec="libvpx", sound_codec="libopus")),
    "webm piped": lambda: video_bytes(Video(container="webm", codec="libvpx"), piped=True),
    "avi": lambda: video_bytes(Video(container="avi", codec="mpeg4")),
}
SOUNDS: Mapping[str, Callable[[], bytes]] = {
    "wav": lambda: sound_bytes("wav", "pcm_s16le", 500),
    "flac": lambda: sound_bytes("flac", "flac", 500),
    "mp3": lambda: sound_bytes("mp3", "libmp3lame", 5000),
    "mp3 without a count": lambda: sound_bytes("mp3", "libmp3lame", 5000, muxer={"write_xing": "0"}),
    "ogg": lambda: sound_bytes("ogg", "libopus", 5000, rate_hz=48_000),
}
