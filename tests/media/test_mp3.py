"""MP3 headers, judged by what PyAV decodes."""

from __future__ import annotations

import struct

import pytest

from proteus.errors import InvalidMedia
from proteus.media.damage import Damaged
from proteus.media.mp3 import MAX_STEPS, probe_mp3, read_frame
from tests.media.corpus_av import num_samples, patched, same_sound, sound_bytes

NO_COUNT = {"write_xing": "0", "id3v2_version": "0"}
RATES_HZ = (48_000, 44_100, 32_000, 24_000, 22_050, 16_000, 12_000, 11_025, 8_000)
HEAD = b"\xff\xfb\x90\x64"  # MPEG 1 layer III, 128 kbit/s, 44.1 kHz, joint stereo: 417 bytes
FRAME = HEAD + bytes(413)


def id3(content: bytes, *, footer: bool = False) -> bytes:
    size = bytes(len(content) >> shift & 0x7F for shift in (21, 14, 7, 0))
    return b"ID3\x04\x00" + (b"\x10" if footer else b"\x00") + size + content + (b"3DI" + bytes(7) if footer else b"")


@pytest.mark.parametrize("rate_hz", RATES_HZ)
@pytest.mark.parametrize("channels", [1, 2])
def test_samples_told_by_the_first_frame_are_those_decoded(rate_hz: int, channels: int) -> None:
    data = sound_bytes("mp3", "libmp3lame", 20_001, rate_hz=rate_hz, channels=channels)
    header = probe_mp3(memoryview(data))
    assert same_sound(header, data)
    assert num_samples(header) == 20_001  # the encoder's padding is told and taken off


@pytest.mark.parametrize("rate_hz", RATES_HZ)
@pytest.mark.parametrize("channels", [1, 2])
def test_samples_of_a_file_without_a_count_are_those_of_its_frames(rate_hz: int, channels: int) -> None:
    data = sound_bytes("mp3", "libmp3lame", 20_001, rate_hz=rate_hz, channels=channels, muxer=NO_COUNT)
    assert same_sound(probe_mp3(memoryview(data)), data)


@pytest.mark.parametrize(
    ("before", "behind"),
    [
        (b"", b""),
        (id3(bytes(300)), b""),
        (id3(bytes(300), footer=True) + id3(b"\xff\xfb\x90\x64" * 50), b""),
        (b"", b"TAG" + b"\xff" * 125),
        (b"\0" * 500, b""),
        (b"", FRAME[:200]),
    ],
    ids=["bare", "a tag", "two tags", "a tag behind", "zeros before", "half a frame behind"],
)
def test_ten_frames_are_found_whatever_is_around_them(before: bytes, behind: bytes) -> None:
    header = probe_mp3(memoryview(before + FRAME * 10 + behind))
    assert (num_samples(header), header.sample_rate_hz, header.channels) == (11_520, 44_100, 2)


@pytest.mark.parametrize(
    ("head", "num_bytes", "num_samples_of_it"),
    [(b"\xff\xfb\x90\x64", 417, 1152), (b"\xff\xfb\x92\x64", 418, 1152), (b"\xff\xf3\x80\xc4", 208, 576),
     (b"\xff\xe3\x18\xc4", 72, 576)],
    ids=["MPEG 1", "MPEG 1, padded", "MPEG 2", "MPEG 2.5"],
)  # fmt: skip
def test_a_head_tells_the_bytes_and_samples_of_its_frame(head: bytes, num_bytes: int, num_samples_of_it: int) -> None:
    frame = read_frame(memoryview(head), 0)
    assert frame is not None
    assert (frame.num_bytes, frame.num_samples) == (num_bytes, num_samples_of_it)


def test_junk_between_frames_is_stepped_over() -> None:
    assert num_samples(probe_mp3(memoryview(FRAME * 5 + b"\xffjunk" * 9 + FRAME * 5))) == 11_520


def test_a_count_without_padding_is_frames_times_samples() -> None:
    xing = bytearray(FRAME)
    xing[36:48] = b"Xing" + struct.pack(">II", 1, 77)
    assert num_samples(probe_mp3(memoryview(bytes(xing) + FRAME * 3))) == 77 * 1152


def test_a_first_frame_that_tells_no_count_is_not_counted_itself() -> None:
    xing = bytearray(FRAME)
    xing[36:44] = b"Info" + struct.pack(">I", 0)
    assert num_samples(probe_mp3(memoryview(bytes(xing) + FRAME * 3))) == 3 * 1152


def test_the_count_of_vbri_is_read() -> None:
    vbri = bytearray(FRAME)
    vbri[36:54] = b"VBRI" + struct.pack(">HHHII", 1, 0, 75, 4 * 417, 3)
    data = bytes(vbri) + FRAME * 3
    assert num_samples(probe_mp3(memoryview(data))) == 3 * 1152


def test_a_file_shorter_than_its_first_frame_tells_is_damage() -> None:
    data = sound_bytes("mp3", "libmp3lame", 20_001)
    with pytest.raises(Damaged):
        probe_mp3(memoryview(data[:-1]))


def test_more_padding_than_sound_is_no_sound() -> None:
    data = sound_bytes("mp3", "libmp3lame", 1000)
    at = data.index(b"Xing" if b"Xing" in data else b"Info")
    told = patched(data, at + 8, struct.pack(">I", 1))
    assert num_samples(probe_mp3(memoryview(patched(told, at + 120 + 21, b"\xff\xff\xff")))) == 0


def test_flac_behind_a_tag_is_flac() -> None:
    data = sound_bytes("flac", "flac", 500)
    header = probe_mp3(memoryview(id3(bytes(20)) + data))
    assert (header.format, num_samples(header)) == ("flac", 500)


@pytest.mark.parametrize(
    ("head", "name"),
    [(b"\xff\xf1", r"AAC sound \(ADTS\)"), (b"\xff\xfd", "MPEG layer II sound"), (b"\xff\xff", "MPEG layer I sound")],
)
def test_other_layers_are_named(head: bytes, name: str) -> None:
    with pytest.raises(InvalidMedia, match=name):
        probe_mp3(memoryview(head + bytes(500)))


def test_no_sample_is_read() -> None:
    data = sound_bytes("mp3", "libmp3lame", 20_001)
    body = data.index(b"Lavc" if b"Lavc" in data else b"LAME") + 400
    assert probe_mp3(memoryview(patched(data, body, b"\xa5" * (len(data) - body)))) == probe_mp3(memoryview(data))


@pytest.mark.parametrize(
    "data",
    [b"", b"ID3", id3(bytes(5)), FRAME[:3], b"\xff\xfb\x00\x64" * 500, FRAME + bytes(900), bytes(70_000) + FRAME * 9],
    ids=["nothing", "half a tag", "a tag alone", "half a head", "a free bit rate", "one frame and junk", "found late"],
)
def test_what_holds_no_frame_is_damage(data: bytes) -> None:
    with pytest.raises(Damaged):
        probe_mp3(memoryview(data))


def test_more_frames_than_are_counted_are_refused() -> None:
    with pytest.raises(InvalidMedia, match=f"limit: {MAX_STEPS:,} frames"):
        probe_mp3(memoryview(FRAME * 2 + b"\xff\xe0" * MAX_STEPS))
