from __future__ import annotations

import itertools

import numpy as np
import pytest

from proteus.generation.noise import INITIAL, noise

SHAPE = (4, 32, 32)
PINNED = [
    -0.1471279263496399,
    0.5021121501922607,
    -1.091101050376892,
    0.737587034702301,
    -0.7344628572463989,
    -2.107649803161621,
    -1.1331281661987305,
    -1.0716331005096436,
]


def test_a_seed_gives_the_noise_it_always_gave() -> None:
    assert noise(7, 0, INITIAL, (2, 2, 2)).reshape(-1).tolist() == PINNED


def test_the_largest_seed_is_a_seed() -> None:
    assert np.isfinite(noise(2**63 - 1, 2**32, 1000, SHAPE)).all()


def test_equal_keys_give_equal_noise_and_each_part_of_the_key_counts() -> None:
    keys = [(seed, image, step) for seed in (0, 1, 2**53) for image in (0, 1) for step in (0, 1)]
    for one, other in itertools.product(keys, keys):
        assert np.array_equal(noise(*one, SHAPE), noise(*other, SHAPE)) == (one == other)


@pytest.mark.parametrize("shape", [(1,), (3,), (3, 5, 7), (8, 8, 8)])
def test_a_larger_shape_begins_as_a_smaller_one(shape: tuple[int, ...]) -> None:
    part, size = noise(5, 2, 0, shape), int(np.prod(shape))
    assert (part.shape, part.dtype) == (shape, np.float32)
    np.testing.assert_array_equal(part.reshape(-1), noise(5, 2, 0, (size + 9,))[:size])


def test_the_numbers_are_normal() -> None:
    """Moments and shares below some bounds, over 2**20 numbers: five standard errors at most."""
    numbers, root = noise(11, 0, 0, (1 << 20,)).astype(np.float64), 1024
    assert abs(numbers.mean()) < 5 / root
    assert abs(numbers.var() - 1) < 5 * 2**0.5 / root
    assert abs((numbers**3).mean()) < 5 * 15**0.5 / root
    assert abs((numbers**4).mean() - 3) < 5 * 96**0.5 / root
    for bound, share in ((-2.0, 0.022750132), (-1.0, 0.158655254), (0.5, 0.691462461), (3.0, 0.998650102)):
        assert abs((numbers < bound).mean() - share) < 5 * (share * (1 - share)) ** 0.5 / root


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((3, 0, 0), (4, 0, 0)),
        ((3, 0, 0), (3, 1, 0)),
        ((3, 0, 0), (3, 0, 1)),
        ((3, 4, 0), (4, 3, 0)),
        ((0, 0, 0), (2**62, 0, 0)),
    ],
)
def test_noise_of_neighbouring_keys_is_not_correlated(one: tuple[int, int, int], other: tuple[int, int, int]) -> None:
    size = 1 << 18
    first, second = (noise(*key, (size,)).astype(np.float64) for key in (one, other))
    for shift in (0, 1, 2, 4):  # a block of Philox is four words
        assert abs((np.roll(first, shift) * second).mean()) < 5 / size**0.5


@pytest.mark.parametrize("lag", [1, 2, 3, 4, 8])
def test_numbers_of_one_picture_are_not_correlated(lag: int) -> None:
    numbers = noise(21, 3, 0, (1 << 18,)).astype(np.float64)
    assert abs((numbers[lag:] * numbers[:-lag]).mean()) < 5 / (1 << 9)
