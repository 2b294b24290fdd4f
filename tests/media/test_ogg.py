"""Ogg headers, judged by what PyAV decodes, and by pages put together by hand."""

from __future__ import annotations

import struct

import pytest

from proteus.errors import InvalidMedia
from proteus.media.damage import Damaged
from proteus.media.ogg import MAX_PAGES, NO_POSITION, probe_ogg
from tests.media.corpus_av import judge, num_samples, same_sound, sound_bytes

OPUS_HEAD = b"OpusHead" + struct.pack("<BBHIhB", 1, 2, 312, 44_100, 0, 0)


def page(body: bytes = b"", *, flags: int = 0, position: int = 0, serial: int = 7) -> bytes:
    lacing = bytes([255] * (len(body) // 255) + [len(body) % 255])
    return b"OggS\0" + struct.pack("<BQIIIB", flags, position, serial, 0, 0, len(lacing)) + lacing + body


START = page(OPUS_HEAD, flags=2)


@pytest.mark.parametrize(
    ("codec", "rate_hz"), [("libopus", 48_000), ("libopus", 16_000), ("flac", 44_100), ("flac", 8000)]
)
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("samples", [1, 5000, 100_001])
def test_samples_are_those_decoded(codec: str, rate_hz: int, channels: int, samples: int) -> None:
    data = sound_bytes("ogg", codec, samples, rate_hz=rate_hz, channels=channels)
    header = probe_ogg(memoryview(data))
    assert same_sound(header, data)
    assert num_samples(header) == samples * header.sample_rate_hz // rate_hz


@pytest.mark.parametrize("samples", [1, 5000, 60_000, 100_001])
def test_samples_of_vorbis_are_those_its_last_page_leaves(samples: int) -> None:
    """PyAV cuts the end of the last block as the page tells only where the sound has more pages than one."""
    data = sound_bytes("ogg", "vorbis", samples, channels=2)
    header = probe_ogg(memoryview(data))
    found = judge(data, "audio")
    assert (header.channels, header.duration_s) == (2, pytest.approx(found.duration_s))
    assert num_samples(header) == found.num_samples or samples < 44_100


def test_what_opus_skips_at_its_start_is_not_heard() -> None:
    header = probe_ogg(memoryview(START + page(b"x", position=48_312, flags=4)))
    assert (num_samples(header), header.sample_rate_hz, header.channels, header.codec) == (48_000, 48_000, 2, "opus")


def test_less_than_is_skipped_is_no_sound() -> None:
    assert probe_ogg(memoryview(START + page(b"x", position=100))).duration_s == 0.0


@pytest.mark.parametrize(
    "tail",
    [
        b"",
        page(bytes(300), position=NO_POSITION),
        page(bytes(300), position=96_312)[:-1],
        page(bytes(60_000), position=NO_POSITION) * 10,
        b"OggS" * 20,
    ],
    ids=["nothing", "a page on which no packet ends", "a cut page", "many such pages", "junk"],
)
def test_the_last_whole_page_with_a_position_counts(tail: bytes) -> None:
    assert num_samples(probe_ogg(memoryview(START + page(b"x", position=48_312) + tail))) == 48_000


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (START + page(b"x", position=48_312, flags=4) + page(OPUS_HEAD, flags=2, serial=8), "several streams"),
        (START + page(OPUS_HEAD, flags=2, serial=8) + page(b"x", position=48_312), "several streams"),
        (page(b"\x80theora" + bytes(35), flags=2), "an ogg file of theora video"),
        (page(b"Speex   " + bytes(72), flags=2), "an ogg file of speex"),
        (page(b"fishead\0" + bytes(72), flags=2), "an ogg file of several streams"),
        (page(b"unheard of", flags=2), "an ogg file of another codec"),
    ],
    ids=["a chain", "side by side", "theora", "speex", "a skeleton", "unknown"],
)
def test_what_is_not_one_stream_of_sound_is_named(data: bytes, what: str) -> None:
    with pytest.raises(InvalidMedia, match=what):
        probe_ogg(memoryview(data))


def test_two_sounds_joined_in_a_chain_are_refused() -> None:
    sounds = [sound_bytes("ogg", "libopus", samples, rate_hz=48_000) for samples in (5000, 6000)]
    with pytest.raises(InvalidMedia, match="several streams"):
        probe_ogg(memoryview(b"".join(sounds)))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        START[:-1],
        page(OPUS_HEAD),
        page(OPUS_HEAD[:9], flags=2),
        page(b"\x01vorbis" + struct.pack("<IBI", 0, 2, 0), flags=2),
        page(b"\x01vorbis" + struct.pack("<IBI", 0, 0, 44_100), flags=2),
        page(b"\x7fFLAC\x01\0\0\x01fLaC\x84", flags=2),
    ],
    ids=["nothing", "a cut page", "no start", "a cut head", "no rate", "no channels", "no stream info"],
)
def test_what_breaks_the_rules_is_damage(data: bytes) -> None:
    with pytest.raises(Damaged):
        probe_ogg(memoryview(data))


def test_the_look_back_from_the_end_is_bounded() -> None:
    with pytest.raises(InvalidMedia, match=f"limit: {MAX_PAGES:,} pages"):
        probe_ogg(memoryview(START + page(b"x", position=48_312) + b"OggS" * (MAX_PAGES + 1)))
    with pytest.raises(Damaged):
        probe_ogg(memoryview(START + page(b"x", position=48_312) + bytes(2_000_000)))
