from __future__ import annotations

from proteus.families.flops import attention, layer, linear


def test_a_multiply_add_is_two_operations() -> None:
    assert linear(3, 5, 7) == 2 * 3 * 5 * 7
    assert attention(3, 5, 8) == 2 * (3 * 5 * 8) * 2  # scores, then the weighted sum


def test_a_layer_is_four_projections_attention_and_two_or_three_matrices() -> None:
    plain, gated = (layer(3, 6, 8, 16, gated=gated) for gated in (False, True))
    assert plain == 4 * linear(3, 8, 8) + attention(3, 6, 8) + 2 * linear(3, 8, 16)
    assert gated - plain == linear(3, 8, 16)
