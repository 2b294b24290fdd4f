"""FLAC headers: STREAMINFO alone, judged by what PyAV decodes."""

from __future__ import annotations

import pytest

from proteus.errors import InvalidMedia
from proteus.media.damage import Damaged
from proteus.media.flac import probe_flac
from tests.media.corpus_av import num_samples, patched, same_sound, sound_bytes

HEAD_BYTES = 42  # marker, block head, STREAMINFO


@pytest.mark.parametrize(("rate_hz", "channels", "samples"), [(44_100, 1, 5001), (48_000, 2, 4608), (8000, 1, 1)])
def test_samples_are_those_decoded(rate_hz: int, channels: int, samples: int) -> None:
    data = sound_bytes("flac", "flac", samples, rate_hz=rate_hz, channels=channels)
    header = probe_flac(memoryview(data))
    assert same_sound(header, data)
    assert num_samples(header) == samples


def test_a_length_that_a_pipe_left_untold_is_refused_with_the_cause() -> None:
    with pytest.raises(InvalidMedia, match="does not tell its length; fix: encode it to a file, not to a pipe"):
        probe_flac(memoryview(sound_bytes("flac", "flac", 5001, piped=True)))


def test_no_sample_is_read() -> None:
    data = sound_bytes("flac", "flac", 500)
    assert probe_flac(memoryview(data[:HEAD_BYTES])) == probe_flac(memoryview(data))


@pytest.mark.parametrize(
    ("at", "new"),
    [(0, b"flac"), (4, b"\x04"), (5, b"\0\0\x21"), (18, b"\0\0\0")],
    ids=["another marker", "another block first", "a block of another size", "no rate"],
)
def test_what_breaks_the_rules_is_damage(at: int, new: bytes) -> None:
    with pytest.raises(Damaged):
        probe_flac(memoryview(patched(sound_bytes("flac", "flac", 500), at, new)))


def test_a_head_cut_anywhere_is_damage() -> None:
    data = sound_bytes("flac", "flac", 500)
    for end in range(HEAD_BYTES):
        with pytest.raises(Damaged):
            probe_flac(memoryview(data[:end]))
