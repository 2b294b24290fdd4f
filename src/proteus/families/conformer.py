"""The audio encoder of Phi-4-multimodal (arXiv 2503.01743 §2.2): strided convolutions over the mel spectrogram, then
conformer blocks (arXiv 2005.08100). Counted as transformers' Phi4MultimodalAudioModel computes it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from proteus.families.checkpoint import ConfigTable
from proteus.families.flops import attention, linear

CONV_TAPS = 3  # a side of the strided convolutions
MAX_ROWS = 500  # longer audio is cut into pieces of this many rows, the last one padded


@dataclass(frozen=True, slots=True, kw_only=True)
class Conformer:
    mel_bins: int
    shortening: int  # mel frames for one row, a power of two
    conv_channels: int
    width: int
    feed_forward: int
    blocks: int
    kernel: int  # of the convolution along time in a block
    pointwise_width: int
    depthwise_width: int
    depthwise_multiplier: int

    def rows(self, frames: int) -> int:
        """Rows that the blocks give for `frames` mel frames."""
        return math.ceil(frames / self.shortening)

    def padded_rows(self, frames: int) -> int:
        """Rows that the blocks work on: padded to whole pieces when there is more than one."""
        rows = self.rows(frames)
        return rows if rows <= MAX_ROWS else math.ceil(rows / MAX_ROWS) * MAX_ROWS

    def flops(self, frames: int) -> int:
        """Operations of convolutions and blocks for `frames` mel frames."""
        padded = self.padded_rows(frames)
        piece = min(padded, MAX_ROWS)
        return self._convolutions(frames) + padded // piece * self.blocks * self._block(piece)

    def _convolutions(self, frames: int) -> int:
        channels, taps = self.conv_channels, CONV_TAPS**2
        time, bins = math.ceil(frames / 2), math.ceil(self.mel_bins / 2)
        total = linear(time * bins, taps, channels)
        for _ in range(int(math.log2(self.shortening)) - 1):
            time, bins = math.ceil(time / 2), math.ceil(bins / 2)
            total += linear(time * bins, taps, channels) + linear(time * bins, channels, channels)
        return total + linear(time, channels * bins, self.width)

    def _block(self, rows: int) -> int:
        """Two gated feed-forward layers around attention and convolution."""
        feed_forward = linear(rows, self.width, 2 * self.feed_forward) + linear(rows, self.feed_forward, self.width)
        projections = 4 * linear(rows, self.width, self.width)
        return 2 * feed_forward + projections + attention(rows, rows, self.width) + self._convolution(rows)

    def _convolution(self, rows: int) -> int:
        """Padded on both sides to look at the past only: kernel - 1 rows more are computed and cut off."""
        deep, reached = self.width * self.depthwise_multiplier, rows + self.kernel - 1
        gate = linear(rows, self.width, 2 * self.pointwise_width)
        separable = linear(reached, self.kernel, deep) + linear(reached, deep, self.depthwise_width)
        return gate + separable + linear(rows, self.width, self.pointwise_width)


def read_conformer(table: ConfigTable) -> Conformer:
    """From an audio config; raises UnsupportedCheckpoint naming the key."""
    table.one_of("downsample_rate", (1,), 1)
    return Conformer(
        mel_bins=table.positive("input_size", 80),
        shortening=table.one_of("time_reduction", (2, 4, 8, 16, 32), 8),
        conv_channels=table.positive("nemo_conv_channels", 1024),
        width=table.positive("hidden_size", 1024),
        feed_forward=table.positive("intermediate_size", 1536),
        blocks=table.positive("num_blocks", 24),
        kernel=table.positive("kernel_size", 3),
        pointwise_width=table.positive("ext_pw_out_channel", 1024),
        depthwise_width=table.positive("depthwise_separable_out_channel", 1024),
        depthwise_multiplier=table.positive("depthwise_multiplier", 1),
    )
