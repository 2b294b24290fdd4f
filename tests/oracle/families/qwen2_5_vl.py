"""Qwen2.5-VL as transformers counts it."""

from __future__ import annotations

from tests.oracle.families.qwen2_vl import QwenCase, saved, tiny

VISION = {
    "depth": 5,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_heads": 2,
    "out_hidden_size": 32,
    "fullatt_block_indexes": [1, 4, 7],
}
HUB = QwenCase(name="qwen2.5-vl", family="qwen2_5_vl", files=tiny("Qwen2.5-VL-7B", VISION))
CASES = (HUB, saved(HUB))
