"""Header of WAV sound (RIFF/WAVE; RF64 and BW64 for more than 4 GiB, EBU Tech 3306)."""

from __future__ import annotations

from proteus.errors import InvalidMedia
from proteus.media.boxes import riff_chunks
from proteus.media.damage import Damaged
from proteus.media.fields import number
from proteus.media.header import AudioHeader

CODECS = {1: "pcm", 3: "float", 6: "alaw", 7: "mulaw"}  # format tags whose samples all have one size
EXTENSIBLE = 0xFFFE  # the tag stands in the subformat
UNTOLD = (0, 0xFFFFFFFF)  # sizes that writers to a pipe leave behind


def probe_wav(data: memoryview) -> AudioHeader:
    """Header of a WAV sound.

    Samples are those that are there: a data size that is untold or runs over the file ends with the file. Raises
    Damaged, and InvalidMedia on compressed samples, whose number the header does not tell.
    """
    form: tuple[int, int] | None = None
    long_bytes = 0
    for kind, start, end in riff_chunks(data, 12, len(data)):
        if kind == b"ds64":
            long_bytes = number(data, start + 8, 8, "little")
        elif kind == b"fmt ":
            form = start, end
        elif kind == b"data" and form is not None:
            return _header(data, *form, _data_bytes(data, start, long_bytes))
    raise Damaged


def _data_bytes(data: memoryview, start: int, long_bytes: int) -> int:
    told = number(data, start - 4, 4, "little")
    present = len(data) - start
    if told not in UNTOLD:
        return min(told, present)
    return min(long_bytes, present) if long_bytes else present


def _header(data: memoryview, start: int, end: int, num_bytes: int) -> AudioHeader:
    tag, channels = number(data, start, 2, "little"), number(data, start + 2, 2, "little")
    rate_hz, block_bytes = number(data, start + 4, 4, "little"), number(data, start + 12, 2, "little")
    if tag == EXTENSIBLE and end - start >= 40:
        tag = number(data, start + 24, 2, "little")
    if tag not in CODECS:
        raise InvalidMedia(f"a wav file of compressed samples (format tag 0x{tag:04x})", fix="convert it to 16-bit PCM")
    if not channels or not rate_hz or not block_bytes or block_bytes % channels:
        raise Damaged
    return AudioHeader(
        format="wav",
        sample_rate_hz=rate_hz,
        channels=channels,
        duration_s=num_bytes // block_bytes / rate_hz,
        codec=CODECS[tag],
    )
