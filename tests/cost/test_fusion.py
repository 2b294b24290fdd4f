from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proteus.cost.fusion import FlamingoContract, PruneAfter
from proteus.families.language_model import LanguageModel

VICUNA_7B = LanguageModel(layers=32, kv_heads=32, head_dim=128, hidden_size=4096, context_tokens=4096)


def test_flamingo_keeps_64_rows_of_a_picture_in_every_fourth_layer() -> None:
    contract = FlamingoContract()
    assert contract.cross_layers(VICUNA_7B) == 8
    assert contract.cross_rows(3) == 192
    assert contract.cross_kv_bytes(VICUNA_7B, 1) == 2 * 8 * 64 * 32 * 128 * 2
    assert contract.self_kv_bytes(VICUNA_7B, 3) == VICUNA_7B.self_kv_bytes(3)


def test_a_flamingo_picture_takes_a_36th_of_the_memory_of_576_visual_tokens() -> None:
    contract = FlamingoContract(marker_tokens=0)
    assert contract.self_kv_bytes(VICUNA_7B, 1) == 0
    assert VICUNA_7B.self_kv_bytes(576) == 36 * contract.cross_kv_bytes(VICUNA_7B, 1)


def test_cross_attention_may_have_heads_of_its_own_and_leave_layers_over() -> None:
    contract = FlamingoContract(cross_every=7, kv_heads=8, head_dim=64)
    assert contract.cross_layers(VICUNA_7B) == 4
    assert contract.cross_kv_bytes(VICUNA_7B, 2, value_bytes=1) == 2 * 4 * 128 * 8 * 64


@pytest.mark.parametrize("wrong", [{"resampled_rows": 0}, {"cross_every": 0}, {"marker_tokens": -1}])
def test_a_flamingo_contract_without_rows_or_layers_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="above 0"):
        FlamingoContract(**wrong)


@pytest.mark.parametrize(
    ("drop", "visual_tokens", "kept"),
    [(0.5, 576, 288), (0.5, 577, 289), (0.7, 10, 3), (0.9, 10, 1), (0.1, 1, 1), (1.0, 576, 0), (0.0, 576, 576)],
)
def test_kept_tokens_are_rounded_up_and_shares_are_decimals(drop: float, visual_tokens: int, kept: int) -> None:
    assert PruneAfter(drop=drop).kept(visual_tokens) == kept


def test_fastv_by_hand() -> None:
    """K = 2, R = 50 %: two layers of 576, thirty of 288."""
    prune = PruneAfter(layer=2, drop=0.5)
    held = 2 * 576 + 30 * 288
    assert prune.kv_bytes(VICUNA_7B, visual_tokens=576) == 2 * held * 32 * 128 * 2
    pairs = 2 * 576**2 + 30 * 288**2
    assert prune.prefill_attention_flops(VICUNA_7B, heads=32, visual_tokens=576) == 4 * pairs * 4096


@given(
    layer=st.integers(1, 40),
    percent=st.integers(0, 100),
    visual_tokens=st.integers(0, 5000),
    text_tokens=st.integers(0, 5000),
)
def test_sums_equal_a_loop_over_the_layers(layer: int, percent: int, visual_tokens: int, text_tokens: int) -> None:
    prune = PruneAfter(layer=layer, drop=percent / 100)
    kv_bytes = flops = 0
    for number in range(1, VICUNA_7B.layers + 1):
        dropped = visual_tokens * percent // 100 if number > layer else 0
        tokens = text_tokens + visual_tokens - dropped
        kv_bytes += 2 * tokens * 32 * 128 * 2
        flops += 2 * 2 * tokens * tokens * 32 * 128
    sizes = {"visual_tokens": visual_tokens, "text_tokens": text_tokens}
    assert prune.kv_bytes(VICUNA_7B, **sizes) == kv_bytes
    assert prune.prefill_attention_flops(VICUNA_7B, heads=32, **sizes) == flops


@pytest.mark.parametrize("wrong", [{"layer": 0}, {"drop": -0.1}, {"drop": 1.1}])
def test_pruning_before_a_layer_or_more_than_all_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a share from 0 to 1"):
        PruneAfter(**wrong)
