from __future__ import annotations

import numpy as np
import pytest

from proteus.generation.guidance import branches, combine
from tests.generation.schedulers import random_noise


@pytest.mark.parametrize(
    ("guidance", "embedded", "rows"),
    [(1.0, False, 1), (1.01, False, 2), (7.5, False, 2), (1.0, True, 1), (3.5, True, 1)],
)
def test_guidance_takes_a_second_branch_unless_the_denoiser_is_told_it(
    guidance: float, embedded: bool, rows: int
) -> None:
    assert branches(guidance, embedded) == rows


@pytest.mark.parametrize("guidance", [1.5, 3.0, 7.5])
def test_two_branches_are_combined_as_diffusers_does_in_float32(guidance: float) -> None:
    prompt, negative = random_noise(1), random_noise(2)
    combined = combine(prompt, negative, guidance)
    assert combined.dtype == np.float32
    np.testing.assert_array_equal(combined, negative + np.float32(guidance) * (prompt - negative))


def test_equal_branches_are_left_as_they_are() -> None:
    np.testing.assert_array_equal(combine(random_noise(1), random_noise(1), 7.5), random_noise(1))
