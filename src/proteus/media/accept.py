"""Whether a medium is within the contract: from its header and the number of its bytes, before anything is decoded.

What is over a size limit is `MediaTooLarge`; what could not be used at any size is `InvalidPicture` or `InvalidMedia`.
Resizing, tiers and sampling are not decided here: a medium that passes may still be made smaller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from proteus.errors import InvalidMedia, InvalidPicture, MediaTooLarge
from proteus.limits import AudioLimits, ImageLimits, VideoLimits, shown
from proteus.media.header import AudioHeader, PictureHeader, VideoHeader

MediaLimits = ImageLimits | VideoLimits | AudioLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class _Words:
    """How errors speak of one kind of medium."""

    noun: str
    a_noun: str
    table: str  # of the deployment file
    count_key: str
    items: str
    shrink: str  # what to do about too many bytes
    invalid: type[InvalidMedia]


_WORDS: Mapping[type[MediaLimits], _Words] = {
    ImageLimits: _Words(
        noun="picture",
        a_noun="a picture",
        table="image",
        count_key="max_pictures",
        items="pictures",
        shrink="send a smaller or more compressed picture",
        invalid=InvalidPicture,
    ),
    VideoLimits: _Words(
        noun="video",
        a_noun="a video",
        table="video",
        count_key="max_videos",
        items="videos",
        shrink="send a shorter or more compressed video",
        invalid=InvalidMedia,
    ),
    AudioLimits: _Words(
        noun="audio clip",
        a_noun="an audio clip",
        table="audio",
        count_key="max_clips",
        items="audio clips",
        shrink="send a shorter or more compressed audio clip",
        invalid=InvalidMedia,
    ),
}


def check_bytes(num_bytes: int, limits: MediaLimits) -> None:
    """Before the header is read: one encoded medium of `num_bytes`; raises MediaTooLarge, or invalid when empty."""
    words = _WORDS[type(limits)]
    if num_bytes <= 0:
        raise words.invalid(f"the {words.noun} is empty (0 bytes)", fix=f"send the bytes of {words.a_noun} file")
    if num_bytes > limits.max_bytes:
        raise MediaTooLarge(
            f"the {words.noun} has {num_bytes:,} bytes", limit=_limit(limits, "max_bytes"), fix=words.shrink
        )


def check_count(number: int, limits: MediaLimits) -> None:
    """The media of one kind in one request; raises MediaTooLarge."""
    words = _WORDS[type(limits)]
    if number > getattr(limits, words.count_key):
        raise MediaTooLarge(
            f"{number:,} {words.items} in one request",
            limit=_limit(limits, words.count_key),
            fix=f"send fewer {words.items}",
        )


def accept_picture(header: PictureHeader, num_bytes: int, limits: ImageLimits) -> None:
    """One picture of `num_bytes` encoded bytes; raises InvalidPicture or MediaTooLarge naming value, limit and fix."""
    check_bytes(num_bytes, limits)
    _check_format(header.format, limits)
    _check_sides(header, limits)
    _check_animation(header.num_frames, limits)


def accept_video(header: VideoHeader, num_bytes: int, limits: VideoLimits) -> None:
    """One video; raises InvalidMedia or MediaTooLarge. No picture track, frames or duration is refused here already:
    a rate of frames computed from either would be 0 or infinite.
    """
    check_bytes(num_bytes, limits)
    _check_format(header.format, limits)
    sides = f"{header.width_px}x{header.height_px} px"
    if header.width_px <= 0 or header.height_px <= 0:
        raise InvalidMedia(f"the video has frames of {sides}", fix="send a file with a track of pictures")
    if header.num_frames <= 0:
        raise InvalidMedia("the video has 0 frames", fix="send a video that shows at least one frame")
    _check_seconds(header.duration_s, limits)
    if (frame_pixels := header.width_px * header.height_px) > limits.max_frame_pixels:
        raise MediaTooLarge(
            f"a frame of the video is {sides} = {frame_pixels:,} px",
            limit=_limit(limits, "max_frame_pixels"),
            fix="send the video with smaller frames",
        )


def accept_audio(header: AudioHeader, num_bytes: int, limits: AudioLimits) -> None:
    """One audio clip; raises InvalidMedia or MediaTooLarge."""
    check_bytes(num_bytes, limits)
    _check_format(header.format, limits)
    _check_seconds(header.duration_s, limits)
    for key, outside in (
        ("min_sample_rate_hz", header.sample_rate_hz < limits.min_sample_rate_hz),
        ("max_sample_rate_hz", header.sample_rate_hz > limits.max_sample_rate_hz),
    ):
        if outside:
            raise InvalidMedia(
                f"the audio clip has {header.sample_rate_hz:,} samples per second",
                limit=_limit(limits, key),
                fix="resample the audio clip",
            )
    if header.channels <= 0:
        raise InvalidMedia("the audio clip has 0 channels", fix="send a clip with at least one channel")
    if header.channels > limits.max_channels:
        raise MediaTooLarge(
            f"the audio clip has {header.channels:,} channels",
            limit=_limit(limits, "max_channels"),
            fix="mix the audio clip down",
        )


def _check_format(name: str, limits: MediaLimits) -> None:
    if name in limits.formats:
        return
    words = _WORDS[type(limits)]
    fix = f"convert the {words.noun} to one of these formats"
    if not limits.formats:
        fix = f"leave the {words.noun} out: this deployment reads none"
    raise words.invalid(f"{words.a_noun} of format {name}", limit=_limit(limits, "formats"), fix=fix)


def _check_sides(header: PictureHeader, limits: ImageLimits) -> None:
    what = f"the picture is {header.width_px}x{header.height_px} px"
    short_px, long_px = sorted((header.width_px, header.height_px))
    if short_px < limits.min_side_px:
        raise InvalidPicture(what, limit=_limit(limits, "min_side_px"), fix="send a larger picture")
    if long_px > limits.max_side_px:
        raise MediaTooLarge(what, limit=_limit(limits, "max_side_px"), fix="send a smaller picture")
    if (pixels := short_px * long_px) > limits.max_pixels:
        raise MediaTooLarge(f"{what} = {pixels:,} px", limit=_limit(limits, "max_pixels"), fix="send a smaller picture")
    if long_px > limits.max_aspect_ratio * short_px:
        raise InvalidPicture(what, limit=_limit(limits, "max_aspect_ratio"), fix="crop the picture")


def _check_animation(num_frames: int, limits: ImageLimits) -> None:
    if num_frames <= 0:
        raise InvalidPicture("the picture has 0 frames", fix="send a file that holds a picture")
    what = f"the picture has {num_frames:,} frames"
    if num_frames > 1 and limits.animation == "refuse":
        raise InvalidPicture(what, limit=_limit(limits, "animation"), fix="send one frame as a picture of its own")
    if num_frames > limits.max_animation_frames:
        raise MediaTooLarge(what, limit=_limit(limits, "max_animation_frames"), fix="send fewer frames")


def _check_seconds(duration_s: float, limits: VideoLimits | AudioLimits) -> None:
    words = _WORDS[type(limits)]
    if not duration_s > 0:  # refuses NaN as well
        raise InvalidMedia(f"the {words.noun} has no duration", fix=f"send a whole {words.noun}, with its index")
    if duration_s > limits.max_seconds:
        raise MediaTooLarge(
            f"the {words.noun} lasts {shown(duration_s)} s",
            limit=_limit(limits, "max_seconds"),
            fix=f"send a shorter {words.noun}",
        )


def _limit(limits: MediaLimits, key: str) -> str:
    """`[image] max_bytes = 10,485,760`, as the deployment file has it."""
    return f"[{_WORDS[type(limits)].table}] {key} = {shown(getattr(limits, key))}"
