"""Header of FLAC sound: the STREAMINFO block (RFC 9639 §8.2), which is always the first."""

from __future__ import annotations

from proteus.errors import InvalidMedia
from proteus.media.damage import Damaged
from proteus.media.fields import number
from proteus.media.header import AudioHeader

STREAM_INFO_BYTES = 34


def probe_flac(data: memoryview) -> AudioHeader:
    """Header of a FLAC sound.

    Raises Damaged for a broken file, InvalidMedia where the total of samples is 0, "unknown": encoders that write to a
    pipe leave it so, and only decoding would tell.
    """
    if bytes(data[:4]) != b"fLaC":
        raise Damaged
    rate_hz, channels, num_samples = read_stream_info(data, 4)
    if num_samples == 0:
        raise InvalidMedia(
            "a flac file that does not tell its length", fix="encode it to a file, not to a pipe, or send wav"
        )
    return AudioHeader(
        format="flac", sample_rate_hz=rate_hz, channels=channels, duration_s=num_samples / rate_hz, codec="flac"
    )


def read_stream_info(data: memoryview, at: int) -> tuple[int, int, int]:
    """(samples per second, channels, samples) of the metadata block at `at`; raises Damaged."""
    if number(data, at, 1) & 0x7F != 0 or number(data, at + 1, 3) != STREAM_INFO_BYTES:
        raise Damaged
    packed = number(data, at + 4 + 10, 8)  # 20 bits rate, 3 channels - 1, 5 bits per sample - 1, 36 samples
    number(data, at + 4 + STREAM_INFO_BYTES - 1, 1)
    rate_hz = packed >> 44
    if rate_hz == 0:
        raise Damaged
    return rate_hz, (packed >> 41 & 0x7) + 1, packed & 0xFFFFFFFFF
