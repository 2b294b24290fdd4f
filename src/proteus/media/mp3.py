"""Header of MP3 sound: MPEG 1, 2 and 2.5 layer III (ISO/IEC 11172-3, 13818-3), behind any ID3v2 tags.

The samples are told by the frame that encoders put first (Xing, Info, VBRI; LAME's extension tells the padding of both
ends), and else counted by walking from frame to frame.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from proteus.errors import InvalidMedia
from proteus.media.damage import Damaged
from proteus.media.fields import number, too_many
from proteus.media.flac import probe_flac
from proteus.media.header import AudioHeader

MAX_STEPS = 200_000  # frames, and places that look like one, of one file
MAX_TAGS = 16
JUNK_BYTES = 65_536  # looked through for the first frame
SYNC = re.compile(rb"\xff[\xe0-\xff]")
LAYER_III = 0b01
OTHER_LAYERS: Mapping[int, str] = {0b00: "AAC sound (ADTS)", 0b10: "MPEG layer II sound", 0b11: "MPEG layer I sound"}
VERSION_1, VERSION_2, VERSION_2_5 = 0b11, 0b10, 0b00
RATES_HZ: Mapping[int, tuple[int, int, int]] = {
    VERSION_1: (44_100, 48_000, 32_000),
    VERSION_2: (22_050, 24_000, 16_000),
    VERSION_2_5: (11_025, 12_000, 8_000),
}
KBIT_PER_S_1 = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
KBIT_PER_S_2 = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
PADDING_WRITERS = (b"LAME", b"Lavf", b"Lavc")  # whose tags tell the padding


class Frame(NamedTuple):
    version: int
    rate_hz: int
    channels: int
    num_bytes: int

    @property
    def num_samples(self) -> int:
        return 1152 if self.version == VERSION_1 else 576


def probe_mp3(data: memoryview) -> AudioHeader:
    """Header of an MP3 sound; of a FLAC sound when one follows the ID3 tag.

    Raises Damaged for a broken file, InvalidMedia on other layers and on more frames than are counted.
    """
    start = _after_tags(data)
    if bytes(data[start : start + 4]) == b"fLaC":
        return probe_flac(data[start:])
    if start + 2 <= len(data) and SYNC.match(data, start) and (layer := data[start + 1] >> 1 & 0b11) != LAYER_III:
        raise InvalidMedia(OTHER_LAYERS[layer], fix="convert it to mp3, flac, ogg or wav")
    at = _first_frame(data, start)
    frame = read_frame(data, at)
    if frame is None:
        raise Damaged
    return AudioHeader(
        format="mp3",
        sample_rate_hz=frame.rate_hz,
        channels=frame.channels,
        duration_s=_num_samples(data, at, frame) / frame.rate_hz,
        codec="mp3",
    )


def read_frame(data: memoryview, at: int) -> Frame | None:
    """The head of the layer III frame at `at`, None when there is none; free bit rates are not read."""
    if at + 4 > len(data):
        return None
    head = number(data, at, 4)
    version, layer, bit_rate, rate = head >> 19 & 3, head >> 17 & 3, head >> 12 & 15, head >> 10 & 3
    if head >> 21 != 0x7FF or version not in RATES_HZ or layer != LAYER_III or bit_rate in (0, 15) or rate == 3:
        return None
    rate_hz = RATES_HZ[version][rate]
    kbit_per_s = (KBIT_PER_S_1 if version == VERSION_1 else KBIT_PER_S_2)[bit_rate]
    num_bytes = (144_000 if version == VERSION_1 else 72_000) * kbit_per_s // rate_hz + (head >> 9 & 1)
    return Frame(version, rate_hz, 1 if head >> 6 & 3 == 3 else 2, num_bytes)


def _after_tags(data: memoryview) -> int:
    """Where the last of the ID3v2 tags at the start ends; sizes have 7 bits in each byte."""
    at = 0
    for _ in range(MAX_TAGS):
        if bytes(data[at : at + 3]) != b"ID3":
            break
        sizes = [number(data, at + 6 + index, 1) for index in range(4)]
        footer_bytes = 10 if number(data, at + 5, 1) & 0x10 else 0
        at += 10 + footer_bytes + sum((size & 0x7F) << shift for size, shift in zip(sizes, (21, 14, 7, 0), strict=True))
    return at


def _first_frame(data: memoryview, start: int) -> int:
    """The first place that holds a frame with another like it behind it, or nothing."""
    for match in SYNC.finditer(data, start, min(len(data), start + JUNK_BYTES)):
        frame = read_frame(data, match.start())
        if frame is not None and _goes_on(data, match.start(), frame):
            return match.start()
    raise Damaged


def _goes_on(data: memoryview, at: int, frame: Frame) -> bool:
    behind = at + frame.num_bytes
    following = read_frame(data, behind)
    return behind == len(data) or (following is not None and following[:2] == frame[:2])


def _num_samples(data: memoryview, at: int, frame: Frame) -> int:
    side_bytes = (17, 32) if frame.version == VERSION_1 else (9, 17)
    xing = at + 4 + side_bytes[frame.channels - 1]
    if bytes(data[xing : xing + 4]) in (b"Xing", b"Info"):
        told = _told_by_xing(data, at, xing, frame)
        return told if told is not None else _walk(data, at + frame.num_bytes, frame) * frame.num_samples
    if bytes(data[at + 36 : at + 40]) == b"VBRI":
        return number(data, at + 36 + 14, 4) * frame.num_samples
    return _walk(data, at, frame) * frame.num_samples


def _told_by_xing(data: memoryview, start: int, xing: int, frame: Frame) -> int | None:
    """Samples by the Xing frame, without LAME's padding; None when it tells none. Raises Damaged on a cut file."""
    flags = number(data, xing + 4, 4)
    if not flags & 0x1:
        return None
    num_samples = number(data, xing + 8, 4) * frame.num_samples
    if flags & 0x2 and start + number(data, xing + 12, 4) > len(data):
        raise Damaged
    lame = xing + 12 + 4 * bool(flags & 0x2) + 100 * bool(flags & 0x4) + 4 * bool(flags & 0x8)
    if bytes(data[lame : lame + 4]) in PADDING_WRITERS:
        padding = number(data, lame + 21, 3)
        num_samples -= (padding >> 12) + (padding & 0xFFF)
    return max(0, num_samples)


def _walk(data: memoryview, at: int, like: Frame) -> int:
    """Whole frames from `at` on; junk between frames is stepped over, a frame cut by the end does not count."""
    num_frames = 0
    for _ in range(MAX_STEPS):
        frame = read_frame(data, at)
        if frame is not None and frame[:2] == like[:2] and at + frame.num_bytes <= len(data):
            num_frames += 1
            at += frame.num_bytes
            continue
        match = SYNC.search(data, at + 1)
        if match is None:
            return num_frames
        at = match.start()
    raise too_many("audio", "frames", MAX_STEPS)
