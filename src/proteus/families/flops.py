"""Floating-point operations of the layers that encoders are made of; one multiply-add is two operations.

Matrix products, convolutions and attention products are counted; norms, activations and positions are not: they are
below one per cent, and torch's FlopCounterMode, which judges these numbers, does not count them either.
"""

from __future__ import annotations


def linear(rows: int, width_in: int, width_out: int) -> int:
    """A matrix product of (rows, width_in) and (width_in, width_out)."""
    return 2 * rows * width_in * width_out


def attention(queries: int, keys: int, width: int) -> int:
    """Scores and weighted sum of all heads together; `width` = heads · head_dim."""
    return 4 * queries * keys * width


def layer(rows: int, keys: int, width: int, feed_forward: int, *, gated: bool = False) -> int:
    """One encoder layer over `rows` positions, each looking at `keys`: four projections, attention, feed-forward.

    `gated`: three feed-forward matrices instead of two. For windows or segments, add up their `attention` instead.
    """
    projections = 4 * linear(rows, width, width)
    return projections + attention(rows, keys, width) + (3 if gated else 2) * linear(rows, width, feed_forward)
