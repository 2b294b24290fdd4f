"""Which frames of a video are given to the encoder, and how long a sound is after resampling; arithmetic on headers."""

from __future__ import annotations

from proteus.media.header import AudioHeader, VideoHeader


def sample_frames(header: VideoHeader, *, frames_per_s: float, max_frames: int) -> tuple[int, ...]:
    """Indices of the frames taken, among those that are presented: evenly spread, first frame included, rising.

    As many as `frames_per_s` gives for the duration, rounded down; at least one, and never more than there are or
    than `max_frames`. A video that tells no duration gives as many as those two allow. Frame i of n is the one on
    which the i-th of n equal parts of the video begins. Empty when the video has no frame.
    """
    most = min(header.num_frames, max_frames)
    if most < 1:
        return ()
    wanted = most if header.duration_s <= 0 else max(1, int(min(header.duration_s * frames_per_s, most)))
    return tuple(index * header.num_frames // wanted for index in range(wanted))


def samples_at(header: AudioHeader, sample_rate_hz: int) -> int:
    """Samples of the mono signal at `sample_rate_hz`: ceil(samples x new rate / old rate), in whole numbers.

    A resampler gives one sample for every begun period of the new rate; a signal of whole length keeps it.
    """
    num_samples = round(header.duration_s * header.sample_rate_hz)
    return -(-num_samples * sample_rate_hz // header.sample_rate_hz)
