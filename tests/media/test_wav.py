"""WAV headers: every sample that is there and no other, judged by PyAV."""

from __future__ import annotations

import struct

import pytest

from proteus.errors import InvalidMedia
from proteus.media.damage import Damaged
from proteus.media.wav import probe_wav
from tests.media.corpus_av import num_samples, same_sound, sound_bytes

SUBFORMAT_TAIL = bytes.fromhex("000000001000800000aa00389b71")


def chunk(kind: bytes, content: bytes, *, told: int | None = None) -> bytes:
    return kind + struct.pack("<I", len(content) if told is None else told) + content + bytes(len(content) % 2)


def form(
    tag: int = 1, *, channels: int = 1, rate_hz: int = 8000, bits: int = 16, block_bytes: int | None = None
) -> bytes:
    block = channels * bits // 8 if block_bytes is None else block_bytes
    return struct.pack("<HHIIHH", tag, channels, rate_hz, rate_hz * block, block, bits)


def extensible(subformat: int, *, bits: int) -> bytes:
    head = form(0xFFFE, bits=bits) + struct.pack("<HHI", 22, bits, 4)
    return head + struct.pack("<H", subformat) + SUBFORMAT_TAIL


def file(*chunks: bytes, kind: bytes = b"RIFF", told: int | None = None) -> bytes:
    inside = b"WAVE" + b"".join(chunks)
    return kind + struct.pack("<I", len(inside) if told is None else told) + inside


@pytest.mark.parametrize(
    "codec", ["pcm_u8", "pcm_s16le", "pcm_s24le", "pcm_s32le", "pcm_f32le", "pcm_f64le", "pcm_alaw", "pcm_mulaw"]
)
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("piped", [False, True], ids=["file", "pipe"])
def test_samples_are_those_decoded(codec: str, channels: int, piped: bool) -> None:
    data = sound_bytes("wav", codec, 1001, channels=channels, piped=piped)
    header = probe_wav(memoryview(data))
    assert same_sound(header, data)
    assert num_samples(header) == 1001


@pytest.mark.parametrize("mode", ["always", "auto", "never"])
def test_sizes_of_64_bits_are_read(mode: str) -> None:
    data = sound_bytes("wav", "pcm_s16le", 1001, muxer={"rf64": mode})
    assert same_sound(probe_wav(memoryview(data)), data)


@pytest.mark.parametrize(
    "data",
    [
        file(chunk(b"fmt ", form()), chunk(b"data", bytes(200))),
        file(chunk(b"JUNK", bytes(7)), chunk(b"fmt ", form()), chunk(b"LIST", bytes(11)), chunk(b"data", bytes(200))),
        file(chunk(b"fmt ", form()), chunk(b"data", bytes(200)), chunk(b"LIST", b"INFO" + bytes(50))),
        file(chunk(b"fmt ", form()), chunk(b"data", bytes(200), told=0)),
        file(chunk(b"fmt ", form()), chunk(b"data", bytes(200), told=0xFFFFFFFF), told=0xFFFFFFFF),
        file(chunk(b"fmt ", form()), chunk(b"data", bytes(200), told=5000)),
        file(chunk(b"fmt ", form()), chunk(b"data", bytes(201))),
        file(chunk(b"fmt ", extensible(1, bits=16)), chunk(b"data", bytes(200))),
        file(chunk(b"fmt ", extensible(3, bits=32)), chunk(b"data", bytes(400))),
        file(
            chunk(b"ds64", struct.pack("<QQQI", 300, 200, 100, 0)), chunk(b"fmt ", form()),
            chunk(b"data", bytes(200) + chunk(b"LIST", bytes(40)), told=0xFFFFFFFF), kind=b"RF64", told=0xFFFFFFFF,
        ),
    ],
    ids=[
        "plain", "odd chunks before", "a chunk behind", "a size of nothing", "no size", "a size over the file",
        "half a sample", "extensible", "extensible float", "64-bit size and a chunk behind",
    ],
)  # fmt: skip
def test_a_hundred_samples_are_found_however_they_are_told(data: bytes) -> None:
    header = probe_wav(memoryview(data))
    assert (num_samples(header), header.sample_rate_hz, header.channels) == (100, 8000, 1)
    assert same_sound(header, data)


@pytest.mark.parametrize(("tag", "name"), [(1, "pcm"), (3, "float"), (6, "alaw"), (7, "mulaw")])
def test_the_codec_has_a_name(tag: int, name: str) -> None:
    assert probe_wav(memoryview(file(chunk(b"fmt ", form(tag)), chunk(b"data", bytes(9))))).codec == name


def test_compressed_samples_are_refused_by_their_tag() -> None:
    with pytest.raises(InvalidMedia, match=r"compressed samples \(format tag 0x0011\); fix: convert it to 16-bit PCM"):
        probe_wav(memoryview(sound_bytes("wav", "adpcm_ima_wav", 5000)))


def test_no_sample_is_read() -> None:
    data = file(chunk(b"fmt ", form()), chunk(b"data", bytes(200)))
    assert probe_wav(memoryview(data[:-200] + b"\xa5" * 200)) == probe_wav(memoryview(data))


@pytest.mark.parametrize(
    "data",
    [
        file(),
        file(chunk(b"fmt ", form())),
        file(chunk(b"data", bytes(9))),
        file(chunk(b"fmt ", form(rate_hz=0)), chunk(b"data", bytes(9))),
        file(chunk(b"fmt ", form(channels=0)), chunk(b"data", bytes(9))),
        file(chunk(b"fmt ", form(channels=2, block_bytes=3)), chunk(b"data", bytes(9))),
        file(chunk(b"fmt ", form(block_bytes=0)), chunk(b"data", bytes(9))),
        file(chunk(b"fact", bytes(4)) * 5000, chunk(b"fmt ", form()), chunk(b"data", bytes(9))),
    ],
    ids=["empty", "no data", "no form", "no rate", "no channels", "odd blocks", "no blocks", "thousands of chunks"],
)  # fmt: skip
def test_what_breaks_the_rules_is_damage(data: bytes) -> None:
    with pytest.raises(Damaged):
        probe_wav(memoryview(data))
