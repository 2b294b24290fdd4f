from __future__ import annotations

from dataclasses import replace

import pytest

from proteus.families.checkpoint import ConfigTable
from proteus.families.conformer import Conformer, read_conformer

SMALL = Conformer(
    mel_bins=80,
    shortening=8,
    conv_channels=4,
    width=8,
    feed_forward=16,
    blocks=1,
    kernel=3,
    pointwise_width=8,
    depthwise_width=8,
    depthwise_multiplier=1,
)


@pytest.mark.parametrize(
    ("frames", "rows", "padded"), [(1, 1, 1), (8, 1, 1), (9, 2, 2), (4000, 500, 500), (4001, 501, 1000)]
)
def test_rows_are_an_eighth_and_long_audio_is_padded_to_pieces(frames: int, rows: int, padded: int) -> None:
    assert (SMALL.rows(frames), SMALL.padded_rows(frames)) == (rows, padded)


def test_pieces_do_not_look_at_each_other() -> None:
    none = replace(SMALL, blocks=0)
    one_piece = SMALL.flops(4000) - none.flops(4000)
    assert SMALL.flops(8000) - none.flops(8000) == 2 * one_piece


def test_one_frame_by_hand() -> None:
    convolutions = 40 * 9 * 4 + (20 + 10) * (9 * 4 + 4 * 4) + 4 * 10 * 8
    block = 2 * (8 * 32 + 16 * 8) + 4 * 8 * 8 + 2 * 8 + 8 * 16 + 3 * (3 * 8 + 8 * 8) + 8 * 8
    assert SMALL.flops(1) == 2 * (convolutions + block)


def test_absent_keys_take_the_defaults_of_transformers() -> None:
    assert read_conformer(ConfigTable("config.json", {})) == Conformer(
        mel_bins=80,
        shortening=8,
        conv_channels=1024,
        width=1024,
        feed_forward=1536,
        blocks=24,
        kernel=3,
        pointwise_width=1024,
        depthwise_width=1024,
        depthwise_multiplier=1,
    )
